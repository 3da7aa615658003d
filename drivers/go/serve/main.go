// Package serve makes any driver of Gardener's machine-controller-manager available to a manager in another process.
//
// The manager is mcm. The file docs/drivers.md of its repository describes the calls, and how the manager uses the answers.
package serve

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
)

// SocketVariable is the environment variable with the path of the socket. A manager sets it if it runs the program.
const SocketVariable = "MCM_DRIVER_SOCKET"

// Main serves a driver until SIGTERM or SIGINT. The flags of the process configure the listener. Main ends the process after an error.
func Main(driver driver.Driver, info Info) {
	var listen Listen
	listen.addFlags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := Serve(ctx, driver, info, listen); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Listen configures the listener: a Unix socket, or a TCP address with mutual TLS.
type Listen struct {
	// Socket is the path of a Unix socket. Its folder must be closed to other users, and is created if it is missing.
	Socket string
	// Address is HOST:PORT. It needs the three files below, which are read again for every connection.
	Address string
	// CertFile and KeyFile have the server's certificate chain and private key, in PEM.
	CertFile, KeyFile string
	// ClientCAFile has the certificates of the authorities that issue certificates for managers, in PEM.
	ClientCAFile string
}

func (l *Listen) addFlags(flags *flag.FlagSet) {
	flags.StringVar(&l.Socket, "socket", os.Getenv(SocketVariable), "Unix socket to listen on, in a folder of mode 0700")
	flags.StringVar(&l.Address, "listen", "", "HOST:PORT to listen on with mutual TLS, instead of a socket")
	flags.StringVar(&l.CertFile, "tls-cert-file", "", "certificate chain of this server, in PEM")
	flags.StringVar(&l.KeyFile, "tls-key-file", "", "its private key, in PEM")
	flags.StringVar(&l.ClientCAFile, "client-ca-file", "", "authorities of which managers show a certificate, in PEM")
}
