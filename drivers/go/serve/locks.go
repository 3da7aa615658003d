package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// machineLocks lets one call per machine run at a time. Drivers of Gardener rarely check their context: a call whose deadline is over
// may still make a VM, and the next call must find that VM.
type machineLocks struct {
	mutex    sync.Mutex
	machines map[string]*machineLock
}

type machineLock struct {
	held chan struct{}
	// The number of calls that hold the lock or wait for it.
	users int
}

// lock waits for the lock of a machine. The returned function releases the lock.
func (l *machineLocks) lock(ctx context.Context, machine string) (func(), error) {
	l.mutex.Lock()
	if l.machines == nil {
		l.machines = map[string]*machineLock{}
	}
	lock := l.machines[machine]
	if lock == nil {
		lock = &machineLock{held: make(chan struct{}, 1)}
		l.machines[machine] = lock
	}
	lock.users++
	l.mutex.Unlock()

	leave := func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		if lock.users--; lock.users == 0 {
			delete(l.machines, machine)
		}
	}
	select {
	case lock.held <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, status.Error(codes.DeadlineExceeded, "an earlier call for this machine is still running")
	}
	// The lock may have become free at the deadline. The caller no longer waits then.
	if ctx.Err() != nil {
		<-lock.held
		leave()
		return nil, status.Error(codes.DeadlineExceeded, "the time for this call is over")
	}
	return func() { <-lock.held; leave() }, nil
}
