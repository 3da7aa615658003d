// A driver with Gardener's interface and a map as its cloud, served by drivers/go. The class's providerSpec controls each call: the tests of
// crates/driver-external make calls fail, hang and panic.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/drivers/go/serve"
	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	corev1 "k8s.io/api/core/v1"
)

const provider = "memory"

func main() {
	serve.Main(&memory{vms: map[string]vm{}}, serve.Info{
		Name:               "memory",
		Version:            "1",
		Providers:          []string{provider},
		Schema:             []byte(`{"type":"object","required":["cluster"]}`),
		RequiredSecretKeys: []string{"token"},
		NodeIDCompare:      driverpb.NodeIdCompare_NODE_ID_COMPARE_LAST_SEGMENT,
		CreateIsIdempotent: true,
	})
}

// The providerSpec of a class: the cloud and its faults.
type spec struct {
	Cluster string `json:"cluster"`
	// The code with which all calls about machines fail, and whether the answer contains the VM nevertheless.
	Fails   string `json:"fails"`
	Partial bool   `json:"partial"`
	// The duration of a creation in milliseconds, independent of its context.
	Takes int `json:"takes"`
	// Whether creations wait for the end of their context, or panic.
	Waits  bool `json:"waits"`
	Panics bool `json:"panics"`
}

type vm struct{ cluster, name string }

func (v vm) id() string { return fmt.Sprintf("memory:///%s/%s", v.cluster, v.name) }

type memory struct {
	lock sync.Mutex
	vms  map[string]vm
}

// asked parses a request, and fails if the class says so.
func asked(class *v1alpha1.MachineClass, secret *corev1.Secret) (spec, error) {
	var read spec
	if class.Provider != provider {
		return read, status.Error(codes.InvalidArgument, fmt.Sprintf("requested for Provider '%s', we only support '%s'", class.Provider, provider))
	}
	if err := json.Unmarshal(class.ProviderSpec.Raw, &read); err != nil {
		return read, status.Error(codes.Internal, err.Error())
	}
	if read.Fails != "" {
		return read, fmt.Errorf("the cloud: %w", status.Error(codes.StringToCode(read.Fails), fmt.Sprintf("it says %s to token %s", read.Fails, secret.Data["token"])))
	}
	return read, nil
}

func (m *memory) CreateMachine(ctx context.Context, request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	spec, err := asked(request.MachineClass, request.Secret)
	if err != nil {
		return &driver.CreateMachineResponse{LastKnownState: "it failed"}, err
	}
	if spec.Waits {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if spec.Panics {
		panic(string(request.Secret.Data["token"]))
	}
	time.Sleep(time.Duration(spec.Takes) * time.Millisecond)
	made := vm{spec.Cluster, request.Machine.Name}
	m.lock.Lock()
	defer m.lock.Unlock()
	m.vms[made.id()] = made
	return &driver.CreateMachineResponse{
		ProviderID:     made.id(),
		NodeName:       made.name,
		LastKnownState: "it is made",
		Addresses:      []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
	}, nil
}

func (m *memory) InitializeMachine(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return nil, status.Error(codes.Unimplemented, "a creation makes whole VMs")
}

// find returns the VM of a machine. The provider id decides if there is one.
func (m *memory) find(machine *v1alpha1.Machine, cluster string) (vm, error) {
	id := machine.Spec.ProviderID
	if id == "" {
		id = vm{cluster, machine.Name}.id()
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	if found, ok := m.vms[id]; ok {
		return found, nil
	}
	return vm{}, status.Error(codes.NotFound, "there is no VM "+id)
}

func (m *memory) DeleteMachine(_ context.Context, request *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	spec, err := asked(request.MachineClass, request.Secret)
	if err != nil {
		return &driver.DeleteMachineResponse{LastKnownState: "it failed"}, err
	}
	found, err := m.find(request.Machine, spec.Cluster)
	if err != nil {
		return nil, err
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	delete(m.vms, found.id())
	return &driver.DeleteMachineResponse{LastKnownState: "it is gone"}, nil
}

func (m *memory) GetMachineStatus(_ context.Context, request *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	spec, err := asked(request.MachineClass, request.Secret)
	if err != nil {
		if spec.Partial {
			known := vm{spec.Cluster, request.Machine.Name}
			return &driver.GetMachineStatusResponse{ProviderID: known.id(), NodeName: known.name}, err
		}
		return nil, err
	}
	found, err := m.find(request.Machine, spec.Cluster)
	if err != nil {
		return nil, err
	}
	return &driver.GetMachineStatusResponse{ProviderID: found.id(), NodeName: found.name}, nil
}

func (m *memory) ListMachines(_ context.Context, request *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	spec, err := asked(request.MachineClass, request.Secret)
	if err != nil {
		return nil, err
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	list := map[string]string{}
	for id, found := range maps.All(m.vms) {
		if found.cluster == spec.Cluster {
			list[id] = found.name
		}
	}
	return &driver.ListMachinesResponse{MachineList: list}, nil
}

// GetVolumeIDs supports CSI volumes and ignores others, as Gardener's drivers do.
func (m *memory) GetVolumeIDs(_ context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	answer := &driver.GetVolumeIDsResponse{}
	for _, volume := range request.PVSpecs {
		if volume.CSI != nil {
			answer.VolumeIDs = append(answer.VolumeIDs, volume.CSI.VolumeHandle)
		}
	}
	return answer, nil
}
