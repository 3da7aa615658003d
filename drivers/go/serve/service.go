package serve

import (
	"cmp"
	"context"
	"sort"
	"time"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
)

const (
	protocol = "1.0"
	// The most VMs in one chunk of a list. A chunk of this size is far smaller than the longest message.
	chunk = 500
)

// service implements the protocol with a driver.
type service struct {
	driverpb.UnimplementedDriverServer
	driver driver.Driver
	info   *driverpb.GetInfoResponse
	locks  machineLocks
}

func newService(driver driver.Driver, info Info) *service {
	deadlines := map[string]uint32{}
	for op, deadline := range info.MaxDeadlines {
		deadlines[op.String()] = uint32(deadline / time.Second)
	}
	return &service{driver: driver, info: &driverpb.GetInfoResponse{
		Name:      info.Name,
		Version:   info.Version,
		Protocol:  protocol,
		Providers: info.Providers,
		Capabilities: []driverpb.Op{
			driverpb.Op_CREATE, driverpb.Op_INITIALIZE, driverpb.Op_DELETE, driverpb.Op_STATUS, driverpb.Op_LIST, driverpb.Op_VOLUMES,
		},
		ProviderSpecJsonSchema: info.Schema,
		MaxDeadlineSeconds:     deadlines,
		MaxConcurrency:         info.MaxConcurrency,
		RequiredSecretKeys:     info.RequiredSecretKeys,
		NodeIdCompare:          info.NodeIDCompare,
		CreateIsIdempotent:     info.CreateIsIdempotent,
		// Drivers of Gardener read the owner of the VMs in the tags of the providerSpec.
		OwnerInClass: true,
	}}
}

func (s *service) GetInfo(context.Context, *driverpb.GetInfoRequest) (*driverpb.GetInfoResponse, error) {
	return s.info, nil
}

// about runs a call about a machine with its deadline, while it holds the lock of the machine.
func about[A any](ctx context.Context, s *service, request *driverpb.MachineRequest, call func(context.Context, subject) (A, error)) (A, error) {
	var none A
	subject, err := subjectOf(request)
	if err != nil {
		return none, err
	}
	ctx, cancel := until(ctx, request.GetDeadline())
	defer cancel()
	// The machine of an orphaned VM may have a provider id and no name.
	name := cmp.Or(subject.machine.Name, subject.machine.Spec.ProviderID)
	if name == "" {
		return none, status.Error(codes.InvalidArgument, "the machine has neither a name nor a provider id")
	}
	unlock, err := s.locks.lock(ctx, subject.machine.Namespace+"/"+name)
	if err != nil {
		return none, err
	}
	defer unlock()
	return call(ctx, subject)
}

// until adds the deadline of a request to the context. A deadline from gRPC has precedence, because it does not depend on the clocks of both hosts.
func until(ctx context.Context, deadline *timestamppb.Timestamp) (context.Context, context.CancelFunc) {
	if _, known := ctx.Deadline(); known || deadline == nil {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.AsTime())
}

func (s *service) CreateMachine(ctx context.Context, request *driverpb.MachineRequest) (*driverpb.MachineResponse, error) {
	return about(ctx, s, request, func(ctx context.Context, of subject) (*driverpb.MachineResponse, error) {
		answer, err := s.driver.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: of.machine, MachineClass: of.class, Secret: of.secret})
		if answer == nil {
			answer = &driver.CreateMachineResponse{}
		}
		made := vm(answer.ProviderID, answer.NodeName, answer.Addresses)
		if err != nil {
			return nil, failed(err, of.secret.Data, made, answer.LastKnownState)
		}
		if made == nil {
			made = &driverpb.MachineResponse{}
		}
		made.LastKnownState = answer.LastKnownState
		return made, nil
	})
}

func (s *service) InitializeMachine(ctx context.Context, request *driverpb.MachineRequest) (*driverpb.MachineResponse, error) {
	return about(ctx, s, request, func(ctx context.Context, of subject) (*driverpb.MachineResponse, error) {
		answer, err := s.driver.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: of.machine, MachineClass: of.class, Secret: of.secret})
		if answer == nil {
			answer = &driver.InitializeMachineResponse{}
		}
		return found(of, vm(answer.ProviderID, answer.NodeName, answer.Addresses), err)
	})
}

func (s *service) GetMachineStatus(ctx context.Context, request *driverpb.MachineRequest) (*driverpb.MachineResponse, error) {
	return about(ctx, s, request, func(ctx context.Context, of subject) (*driverpb.MachineResponse, error) {
		answer, err := s.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: of.machine, MachineClass: of.class, Secret: of.secret})
		if answer == nil {
			answer = &driver.GetMachineStatusResponse{}
		}
		return found(of, vm(answer.ProviderID, answer.NodeName, answer.Addresses), err)
	})
}

// found returns the known values of a VM, or an error that contains them.
func found(of subject, known *driverpb.MachineResponse, err error) (*driverpb.MachineResponse, error) {
	if err != nil {
		return nil, failed(err, of.secret.Data, known, "")
	}
	if known == nil {
		known = &driverpb.MachineResponse{}
	}
	return known, nil
}

func (s *service) DeleteMachine(ctx context.Context, request *driverpb.MachineRequest) (*driverpb.DeleteMachineResponse, error) {
	return about(ctx, s, request, func(ctx context.Context, of subject) (*driverpb.DeleteMachineResponse, error) {
		answer, err := s.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: of.machine, MachineClass: of.class, Secret: of.secret})
		if answer == nil {
			answer = &driver.DeleteMachineResponse{}
		}
		if err != nil {
			return nil, failed(err, of.secret.Data, nil, answer.LastKnownState)
		}
		return &driverpb.DeleteMachineResponse{LastKnownState: answer.LastKnownState}, nil
	})
}

func (s *service) ListMachines(request *driverpb.ListMachinesRequest, stream grpc.ServerStreamingServer[driverpb.ListMachinesChunk]) error {
	class := &v1alpha1.MachineClass{}
	if err := object("machine_class", request.GetMachineClass(), class); err != nil {
		return err
	}
	ctx, cancel := until(stream.Context(), request.GetDeadline())
	defer cancel()
	answer, err := s.driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class, Secret: secretOf(class, request.GetSecret())})
	if err != nil {
		return failed(err, request.GetSecret(), nil, "")
	}
	if answer == nil {
		answer = &driver.ListMachinesResponse{}
	}
	for _, chunk := range chunks(answer.MachineList) {
		if err := stream.Send(chunk); err != nil {
			return err
		}
	}
	return nil
}

// chunks cuts a list into chunks. The last chunk is marked as such.
func chunks(machines map[string]string) []*driverpb.ListMachinesChunk {
	ids := make([]string, 0, len(machines))
	for id := range machines {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	parts := []*driverpb.ListMachinesChunk{{Machines: map[string]string{}}}
	for _, id := range ids {
		part := parts[len(parts)-1]
		if len(part.Machines) == chunk {
			part = &driverpb.ListMachinesChunk{Machines: map[string]string{}}
			parts = append(parts, part)
		}
		part.Machines[id] = machines[id]
	}
	parts[len(parts)-1].Last = true
	return parts
}

// GetVolumeIDs calls the driver for one volume at a time, because Gardener's drivers leave out volumes that they do not know.
func (s *service) GetVolumeIDs(ctx context.Context, request *driverpb.GetVolumeIDsRequest) (*driverpb.GetVolumeIDsResponse, error) {
	ctx, cancel := until(ctx, request.GetDeadline())
	defer cancel()
	all := &driverpb.GetVolumeIDsResponse{}
	for index, spec := range request.GetPvSpecJson() {
		read, err := volume(spec)
		if err != nil {
			return nil, err
		}
		answer, err := s.driver.GetVolumeIDs(ctx, &driver.GetVolumeIDsRequest{PVSpecs: []*corev1.PersistentVolumeSpec{read}})
		if err != nil {
			return nil, failed(err, nil, nil, "")
		}
		if answer == nil {
			continue
		}
		for _, id := range answer.VolumeIDs {
			all.VolumeIds, all.Index = append(all.VolumeIds, id), append(all.Index, uint32(index))
		}
	}
	return all, nil
}
