// Package v1alpha1 replaces Gardener's package of this path, with the parts of machines and classes that drivers use.
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Machine is a machine.
type Machine struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`
	metav1.TypeMeta   `json:",inline"`
	Spec              MachineSpec   `json:"spec,omitempty"`
	Status            MachineStatus `json:"status,omitempty"`
}

// MachineSpec is the desired state of a machine.
type MachineSpec struct {
	Class            ClassSpec        `json:"class,omitempty"`
	ProviderID       string           `json:"providerID,omitempty"`
	NodeTemplateSpec NodeTemplateSpec `json:"nodeTemplate,omitempty"`
}

// ClassSpec names a class.
type ClassSpec struct {
	APIGroup string `json:"apiGroup,omitempty"`
	Kind     string `json:"kind,omitempty"`
	Name     string `json:"name,omitempty"`
}

// NodeTemplateSpec is the template of a Node.
type NodeTemplateSpec struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              corev1.NodeSpec `json:"spec,omitempty"`
}

// MachineStatus is the observed state of a machine.
type MachineStatus struct {
	LastKnownState string `json:"lastKnownState,omitempty"`
}

// MachineClass is a class of machines.
type MachineClass struct {
	metav1.TypeMeta      `json:",inline"`
	metav1.ObjectMeta    `json:"metadata,omitempty"`
	CredentialsSecretRef *corev1.SecretReference `json:"credentialsSecretRef,omitempty"`
	ProviderSpec         runtime.RawExtension    `json:"providerSpec"`
	Provider             string                  `json:"provider,omitempty"`
	SecretRef            *corev1.SecretReference `json:"secretRef,omitempty"`
}
