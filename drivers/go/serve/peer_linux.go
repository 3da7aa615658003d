package serve

import (
	"net"
	"syscall"
)

// peer returns the id of the user whose process is at the other end of a socket.
func peer(connection *net.UnixConn) (uint32, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return 0, err
	}
	var other *syscall.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) {
		other, asked = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = asked
	}
	if err != nil {
		return 0, err
	}
	return other.Uid, nil
}
