package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

func (l *Listen) open() (net.Listener, []grpc.ServerOption, error) {
	switch {
	case l.Address != "":
		if l.CertFile == "" || l.KeyFile == "" || l.ClientCAFile == "" {
			return nil, nil, errors.New("-listen needs -tls-cert-file, -tls-key-file and -client-ca-file")
		}
		if _, err := l.tls(); err != nil {
			return nil, nil, err
		}
		listener, err := net.Listen("tcp", l.Address)
		// The files are read again for every connection, so that renewed certificates are used.
		secure := credentials.NewTLS(&tls.Config{
			MinVersion:         tls.VersionTLS12,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return l.tls() },
		})
		return listener, []grpc.ServerOption{grpc.Creds(secure)}, err
	case l.Socket != "":
		listener, err := unixSocket(l.Socket)
		return listener, nil, err
	}
	return nil, nil, fmt.Errorf("-socket, %s or -listen must say where to listen", SocketVariable)
}

func (l *Listen) tls() (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(l.CertFile, l.KeyFile)
	if err != nil {
		return nil, err
	}
	authorities, err := os.ReadFile(l.ClientCAFile)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s: there is no certificate in it", l.ClientCAFile)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		NextProtos:   []string{"h2"},
	}, nil
}

// unixSocket listens on a socket in a folder that is closed to other users.
func unixSocket(path string) (net.Listener, error) {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	found, err := os.Stat(folder)
	if err != nil {
		return nil, err
	}
	if owner := found.Sys().(*syscall.Stat_t).Uid; !isTrusted(owner) {
		return nil, fmt.Errorf("the folder %s belongs to user %d", folder, owner)
	}
	if found.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("the folder %s is open to other users; it must be 0700", folder)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return trusting{listener}, os.Chmod(path, 0o600)
}

// removeStale removes a socket that an ended process has left.
func removeStale(path string) error {
	found, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && found.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is no socket", path)
	}
	if other, err := net.Dial("unix", path); err == nil {
		_ = other.Close()
		return fmt.Errorf("another process listens on %s", path)
	}
	return os.Remove(path)
}

// isTrusted returns whether processes of a user may connect: those of this process's user and of root.
func isTrusted(uid uint32) bool {
	return uid == 0 || int(uid) == os.Geteuid()
}

// trusting is a listener on a Unix socket that accepts connections of trusted users only.
type trusting struct{ net.Listener }

func (t trusting) Accept() (net.Conn, error) {
	for {
		connection, err := t.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peer(connection.(*net.UnixConn))
		if err == nil && isTrusted(uid) {
			return connection, nil
		}
		log.Printf("a connection of user %d is refused (%v)", uid, err)
		_ = connection.Close()
	}
}
