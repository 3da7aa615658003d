package serve

import (
	"context"
	"errors"
	"fmt"
	"log"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// The longest message in either direction, in bytes. The manager has the same limit.
	longestMessage = 16 << 20
	// How long running calls may take when the server ends.
	shutdownTimeout = 20 * time.Second
	// The shortest time between two pings of a manager. A manager sends a ping every 20 s, which gRPC's default limit refuses.
	minPingInterval = 5 * time.Second
)

// Info describes a driver. It is the answer to GetInfo.
type Info struct {
	// Name and Version of the driver, for logs.
	Name, Version string
	// Providers are the `provider` strings of the classes that the driver serves.
	Providers []string
	// Schema is a JSON Schema of `providerSpec`. Admission checks classes against it.
	Schema []byte
	// RequiredSecretKeys are the keys that the Secrets of a class must have.
	RequiredSecretKeys []string
	// NodeIDCompare is how the ids of machines and Nodes are compared: NODE_ID_COMPARE_LAST_SEGMENT for AWS, Azure, GCP
	// and OpenStack.
	NodeIDCompare driverpb.NodeIdCompare
	// MaxDeadlines limits the time of calls that should end before the manager's deadlines.
	MaxDeadlines map[driverpb.Op]time.Duration
	// MaxConcurrency is the number of calls that may run at once. 0 means any number.
	MaxConcurrency uint32
	// CreateIsIdempotent means that a repeated creation never makes a second VM. It is false for most drivers of Gardener: the
	// manager then looks for the VM for a while before it repeats a creation with an unknown outcome.
	CreateIsIdempotent bool
}

// Serve serves a driver until ctx ends. Calls that are running then have 20 s to end.
func Serve(ctx context.Context, driver driver.Driver, info Info, listen Listen) error {
	if len(info.Providers) == 0 {
		return errors.New("Info.Providers names no provider")
	}
	listener, options, err := listen.open()
	if err != nil {
		return err
	}
	options = append(options,
		grpc.MaxRecvMsgSize(longestMessage),
		grpc.MaxSendMsgSize(longestMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
			defer recovered(info.FullMethod, &err)
			return handler(ctx, request)
		}),
		grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
			defer recovered(info.FullMethod, &err)
			return handler(server, stream)
		}),
	)
	server, healthy := grpc.NewServer(options...), health.NewServer()
	driverpb.RegisterDriverServer(server, newService(driver, info))
	healthpb.RegisterHealthServer(server, healthy)

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Printf("serving %s for providers %q on %s", info.Name, info.Providers, listener.Addr())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	healthy.Shutdown()
	cut := time.AfterFunc(shutdownTimeout, server.Stop)
	defer cut.Stop()
	server.GracefulStop()
	return nil
}

// recovered turns a panic of a driver into an error. The value of a panic may contain a Secret, so only an error of the Go runtime is logged.
func recovered(method string, err *error) {
	panicked := recover()
	if panicked == nil {
		return
	}
	what := fmt.Sprintf("a %T", panicked)
	var runtimeError runtime.Error
	if asError, ok := panicked.(error); ok && errors.As(asError, &runtimeError) {
		what = runtimeError.Error()
	}
	log.Printf("the driver panicked in %s: %s\n%s", method, what, debug.Stack())
	*err = status.Errorf(codes.Internal, "the driver panicked: %s", what)
}
