// Package driver replaces Gardener's package of this path: the same names, signatures and fields.
package driver

import (
	"context"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

// Driver is the interface that a provider implements.
type Driver interface {
	CreateMachine(context.Context, *CreateMachineRequest) (*CreateMachineResponse, error)
	InitializeMachine(context.Context, *InitializeMachineRequest) (*InitializeMachineResponse, error)
	DeleteMachine(context.Context, *DeleteMachineRequest) (*DeleteMachineResponse, error)
	GetMachineStatus(context.Context, *GetMachineStatusRequest) (*GetMachineStatusResponse, error)
	ListMachines(context.Context, *ListMachinesRequest) (*ListMachinesResponse, error)
	GetVolumeIDs(context.Context, *GetVolumeIDsRequest) (*GetVolumeIDsResponse, error)
}

// CreateMachineRequest requests a VM.
type CreateMachineRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// CreateMachineResponse identifies the created VM.
type CreateMachineResponse struct {
	ProviderID     string
	NodeName       string
	LastKnownState string
	Addresses      []corev1.NodeAddress
}

// InitializeMachineRequest requests the second half of a creation.
type InitializeMachineRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// InitializeMachineResponse identifies the VM.
type InitializeMachineResponse struct {
	ProviderID string
	NodeName   string
	Addresses  []corev1.NodeAddress
}

// DeleteMachineRequest requests the deletion of a VM.
type DeleteMachineRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// DeleteMachineResponse confirms that nothing is left.
type DeleteMachineResponse struct {
	LastKnownState string
}

// GetMachineStatusRequest requests the VM of a machine.
type GetMachineStatusRequest struct {
	Machine      *v1alpha1.Machine
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// GetMachineStatusResponse identifies the VM.
type GetMachineStatusResponse struct {
	ProviderID string
	NodeName   string
	Addresses  []corev1.NodeAddress
}

// ListMachinesRequest requests all VMs of a class.
type ListMachinesRequest struct {
	MachineClass *v1alpha1.MachineClass
	Secret       *corev1.Secret
}

// ListMachinesResponse contains the names of machines, by the ids of their VMs.
type ListMachinesResponse struct {
	MachineList map[string]string
}

// GetVolumeIDsRequest requests the provider's names of volumes.
type GetVolumeIDsRequest struct {
	PVSpecs []*corev1.PersistentVolumeSpec
}

// GetVolumeIDsResponse contains the provider's names.
type GetVolumeIDsResponse struct {
	VolumeIDs []string
}
