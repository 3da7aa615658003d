package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func asJSON(t *testing.T, kind string, object any) *driverpb.ObjectJson {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return &driverpb.ObjectJson{ApiVersion: "machine.sapcloud.io/v1alpha1", Kind: kind, Json: text}
}

func request(t *testing.T, name string) *driverpb.MachineRequest {
	t.Helper()
	return &driverpb.MachineRequest{
		Machine: asJSON(t, "Machine", map[string]any{
			"metadata": map[string]any{"name": name, "namespace": "shoot", "uid": "u1", "creationTimestamp": "2026-01-02T03:04:05Z"},
			"spec":     map[string]any{"providerID": "a:///1", "nodeTemplate": map[string]any{"spec": map[string]any{"podCIDR": "10.0.0.0/24"}}},
			"status":   map[string]any{"lastKnownState": "step 1", "ofALaterVersion": 1},
		}),
		MachineClass: asJSON(t, "MachineClass", map[string]any{
			"metadata": map[string]any{"name": "small"}, "provider": "AWS",
			"providerSpec": map[string]any{"ami": "ami-1"}, "secretRef": map[string]any{"name": "s", "namespace": "shoot"},
		}),
		Secret: map[string][]byte{"userData": []byte("#!/bin/sh")},
	}
}

func TestARequestInGardenersTypes(t *testing.T) {
	of, err := subjectOf(request(t, "worker-1"))
	if err != nil {
		t.Fatal(err)
	}
	machine, class := of.machine, of.class
	if machine.Name != "worker-1" || machine.Namespace != "shoot" || machine.UID != "u1" || machine.Spec.ProviderID != "a:///1" ||
		machine.Spec.NodeTemplateSpec.Spec.PodCIDR != "10.0.0.0/24" || machine.Status.LastKnownState != "step 1" {
		t.Errorf("%+v", machine)
	}
	if class.Provider != "AWS" || string(class.ProviderSpec.Raw) != `{"ami":"ami-1"}` {
		t.Errorf("%+v", class)
	}
	if string(of.secret.Data["userData"]) != "#!/bin/sh" || of.secret.Name != "s" || of.secret.Namespace != "shoot" {
		t.Errorf("%+v", of.secret.ObjectMeta)
	}
	if of := secretOf(&v1alpha1.MachineClass{}, nil); of.Data == nil {
		t.Error("drivers look into the data of a Secret without asking whether there is one")
	}
}

func TestARequestThatCanNotBeRead(t *testing.T) {
	for _, broken := range []*driverpb.MachineRequest{
		{}, {Machine: &driverpb.ObjectJson{Json: []byte("{")}}, {Machine: asJSON(t, "Machine", map[string]any{})},
	} {
		if _, err := subjectOf(broken); status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
	}
}

func TestTheLastChunkOfAListIsMarked(t *testing.T) {
	for _, n := range []int{0, 1, chunk, chunk + 1, 3 * chunk} {
		machines := map[string]string{}
		for i := range n {
			machines[fmt.Sprint("a:///", i)] = fmt.Sprint("worker-", i)
		}
		parts := chunks(machines)
		total := 0
		for i, part := range parts {
			total += len(part.Machines)
			if part.Last != (i == len(parts)-1) || len(part.Machines) > chunk {
				t.Error(n, i, part.Last, len(part.Machines))
			}
		}
		if total != n {
			t.Error(n, total)
		}
	}
}

// slow is a driver whose creation ignores its context and waits for the channel goOn.
type slow struct {
	driver.Driver
	began, goOn chan struct{}
}

func (s slow) CreateMachine(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	s.began <- struct{}{}
	<-s.goOn
	return &driver.CreateMachineResponse{ProviderID: "a:///1"}, nil
}

func (s slow) GetMachineStatus(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return &driver.GetMachineStatusResponse{ProviderID: "a:///1"}, nil
}

func TestACallAfterItsDeadlineStillLocksItsMachine(t *testing.T) {
	slow := slow{began: make(chan struct{}), goOn: make(chan struct{})}
	service := newService(slow, Info{})
	first := make(chan error)
	go func() {
		_, err := service.CreateMachine(context.Background(), request(t, "worker-1"))
		first <- err
	}()
	<-slow.began
	soon := request(t, "worker-1")
	soon.Deadline = timestamppb.New(time.Now().Add(50 * time.Millisecond))
	if _, err := service.GetMachineStatus(context.Background(), soon); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call must wait while a creation for the machine runs: %v", err)
	}
	if _, err := service.GetMachineStatus(context.Background(), request(t, "worker-2")); err != nil {
		t.Errorf("other machines do not wait: %v", err)
	}
	close(slow.goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if _, err := service.GetMachineStatus(context.Background(), request(t, "worker-1")); err != nil {
		t.Error(err)
	}
	if len(service.locks.machines) != 0 {
		t.Error("an unused lock is not removed")
	}
}

func TestASocketIsClosedToOthers(t *testing.T) {
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := unixSocket(filepath.Join(folder, "s")); err == nil || !strings.Contains(err.Error(), "must be 0700") {
		t.Error(err)
	}
	path := filepath.Join(folder, "run", "s")
	listener, err := unixSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if _, err := unixSocket(path); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Error(err)
	}
	for of, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if found, err := os.Stat(of); err != nil || found.Mode().Perm() != mode {
			t.Error(of, found.Mode(), err)
		}
	}
	notes := filepath.Join(folder, "run", "notes")
	if err := os.WriteFile(notes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := unixSocket(notes); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Error(err)
	}
}

func TestWhatIsMissing(t *testing.T) {
	for text, serve := range map[string]func() error{
		"names no provider":        func() error { return Serve(context.Background(), nil, Info{}, Listen{Socket: "/nowhere"}) },
		"must say where to listen": func() error { return Serve(context.Background(), nil, Info{Providers: []string{"x"}}, Listen{}) },
		"-listen needs -tls-cert-file": func() error {
			return Serve(context.Background(), nil, Info{Providers: []string{"x"}}, Listen{Address: ":0"})
		},
	} {
		if err := serve(); err == nil || !strings.Contains(err.Error(), text) {
			t.Error(text, err)
		}
	}
}
