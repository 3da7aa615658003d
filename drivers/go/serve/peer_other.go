//go:build !linux

package serve

import (
	"net"
	"os"
)

// peer trusts the folder of the socket, which is closed to other users.
func peer(*net.UnixConn) (uint32, error) {
	return uint32(os.Geteuid()), nil
}
