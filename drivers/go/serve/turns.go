package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// turns lets one call per machine run at a time. Drivers of Gardener seldom look at their context: a call that the manager
// has given up may still make a VM, and the next call must see what came of it.
type turns struct {
	lock    sync.Mutex
	waiting map[string]*turn
}

type turn struct {
	taken chan struct{}
	users int
}

// take waits for the turn of a machine; the turn lasts until the returned function is called.
func (t *turns) take(ctx context.Context, machine string) (func(), error) {
	t.lock.Lock()
	if t.waiting == nil {
		t.waiting = map[string]*turn{}
	}
	one := t.waiting[machine]
	if one == nil {
		one = &turn{taken: make(chan struct{}, 1)}
		t.waiting[machine] = one
	}
	one.users++
	t.lock.Unlock()

	leave := func() {
		t.lock.Lock()
		defer t.lock.Unlock()
		if one.users--; one.users == 0 {
			delete(t.waiting, machine)
		}
	}
	select {
	case one.taken <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, status.Error(codes.DeadlineExceeded, "an earlier call for this machine is still running")
	}
	// Both may have come at once: nobody waits for the call any more.
	if ctx.Err() != nil {
		<-one.taken
		leave()
		return nil, status.Error(codes.DeadlineExceeded, "the time for this call is over")
	}
	return func() { <-one.taken; leave() }, nil
}
