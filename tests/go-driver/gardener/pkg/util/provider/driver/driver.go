// Package driver stands in for Gardener's package of this path: the same names, signatures and fields.
package driver

import (
	"context"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

// Driver is what a provider implements.
type Driver interface {
	CreateMachine(context.Context, *CreateMachineRequest) (*CreateMachineResponse, error)
	InitializeMachine(context.Context, *InitializeMachineRequest) (*InitializeMachineResponse, error)
	DeleteMachine(context.Context, *DeleteMachineRequest) (*DeleteMachineResponse, error)
	GetMachineStatus(context.Context, *GetMachineStatusRequest) (*GetMachineStatusResponse, error)
	ListMachines(context.Context, *ListMachinesRequest) (*ListMachinesResponse, error)
	GetVolumeIDs(context.Context, *GetVolumeIDsRequest) (*GetVolumeIDsResponse, error)
}

// CreateMachineRequest asks for a VM.
type CreateMachineRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// CreateMachineResponse names a VM that was made.
type CreateMachineResponse struct {
	ProviderID     string
	NodeName       string
	LastKnownState string
	Addresses      []corev1.NodeAddress
}

// InitializeMachineRequest asks for the second half of a creation.
type InitializeMachineRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// InitializeMachineResponse names the VM.
type InitializeMachineResponse struct {
	ProviderID string
	NodeName   string
	Addresses  []corev1.NodeAddress
}

// DeleteMachineRequest asks for the end of a VM.
type DeleteMachineRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// DeleteMachineResponse says that nothing is left.
type DeleteMachineResponse struct {
	LastKnownState string
}

// GetMachineStatusRequest asks for the VM of a machine.
type GetMachineStatusRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// GetMachineStatusResponse names the VM.
type GetMachineStatusResponse struct {
	ProviderID string
	NodeName   string
	Addresses  []corev1.NodeAddress
}

// ListMachinesRequest asks for all VMs of a class.
type ListMachinesRequest struct {
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// ListMachinesResponse has the names of machines by the ids of their VMs.
type ListMachinesResponse struct {
	MachineList map[string]string
}

// GetVolumeIDsRequest asks for the provider's names of volumes.
type GetVolumeIDsRequest struct {
	PVSpecs []*corev1.PersistentVolumeSpec
}

// GetVolumeIDsResponse has them.
type GetVolumeIDsResponse struct {
	VolumeIDs []string
}
