// Package serve lets any driver of Gardener's machine-controller-manager answer a manager in another process.
//
// The manager is mcm; docs/drivers.md of its repository says what it asks, and what it makes of the answers.
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

// SocketVariable is the environment variable in which a manager that runs the program names the socket.
const SocketVariable = "MCM_DRIVER_SOCKET"

// Main serves a driver where the flags of the process say, until SIGTERM or SIGINT. It ends the process when that fails.
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

// Listen says where a driver is served: on a Unix socket, or on a TCP address with mutual TLS.
type Listen struct {
	// Socket is the path of a Unix socket; its folder is made if it is not there, and must be closed to other users.
	Socket string
	// Address is HOST:PORT; the three files below are needed with it. They are read for every connection.
	Address string
	// CertFile and KeyFile are the server's chain and key, in PEM.
	CertFile, KeyFile string
	// ClientCAFile has the authorities of which a manager shows a certificate, in PEM.
	ClientCAFile string
}

func (l *Listen) addFlags(flags *flag.FlagSet) {
	flags.StringVar(&l.Socket, "socket", os.Getenv(SocketVariable), "Unix socket to listen on, in a folder of mode 0700")
	flags.StringVar(&l.Address, "listen", "", "HOST:PORT to listen on with mutual TLS, instead of a socket")
	flags.StringVar(&l.CertFile, "tls-cert-file", "", "certificate chain of this server, in PEM")
	flags.StringVar(&l.KeyFile, "tls-key-file", "", "its private key, in PEM")
	flags.StringVar(&l.ClientCAFile, "client-ca-file", "", "authorities of which managers show a certificate, in PEM")
}
