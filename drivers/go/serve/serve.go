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
	// The longest message in either direction, as the manager has it.
	longestMessage = 16 << 20
	// Calls may take so long when the server ends.
	endsWithin = 20 * time.Second
	// A manager asks a silent connection every 20 s whether it is alive; gRPC's default takes that for an attack.
	pingsAtMostEvery = 5 * time.Second
)

// Info is what a manager is told of a driver.
type Info struct {
	// Name and Version of the driver, for logs.
	Name, Version string
	// Providers are the `provider` strings of the classes that it serves.
	Providers []string
	// Schema is a JSON Schema of `providerSpec`; admission asks for it.
	Schema []byte
	// RequiredSecretKeys must be in the Secrets of a class.
	RequiredSecretKeys []string
	// NodeIDCompare says how the ids of machines and Nodes are compared: NODE_ID_COMPARE_LAST_SEGMENT for AWS, Azure, GCP
	// and OpenStack.
	NodeIDCompare driverpb.NodeIdCompare
	// MaxDeadlines bounds calls where they should end sooner than the manager's deadlines.
	MaxDeadlines map[driverpb.Op]time.Duration
	// MaxConcurrency is how many calls may run at once; 0 means any number.
	MaxConcurrency uint32
	// CreateIsIdempotent says that a repeated creation never makes a second VM. Most drivers of Gardener can't say so: then
	// the manager asks for the VM for a while before it repeats a creation whose outcome nobody knows.
	CreateIsIdempotent bool
}

// Serve serves a driver until ctx ends; calls that run then have 20 s to end.
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
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAtMostEvery, PermitWithoutStream: true}),
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
	cut := time.AfterFunc(endsWithin, server.Stop)
	defer cut.Stop()
	server.GracefulStop()
	return nil
}

// recovered turns a panic of a driver into an error. What the panic says may repeat a Secret, unless the runtime made it.
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
