package serve

import (
	"encoding/json"

	"github.com/gardener/machine-controller-manager/drivers/go/driverpb"
	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// subject has the objects of a call in Gardener's types.
type subject struct {
	machine *v1alpha1.Machine
	class   *v1alpha1.MachineClass
	secret  *corev1.Secret
}

func subjectOf(request *driverpb.MachineRequest) (subject, error) {
	machine, class := &v1alpha1.Machine{}, &v1alpha1.MachineClass{}
	if err := object("machine", request.GetMachine(), machine); err != nil {
		return subject{}, err
	}
	if err := object("machine_class", request.GetMachineClass(), class); err != nil {
		return subject{}, err
	}
	return subject{machine, class, secretOf(class, request.GetSecret())}, nil
}

// object reads the JSON of an object. Unknown fields are ignored.
func object(what string, from *driverpb.ObjectJson, into any) error {
	if from == nil {
		return status.Errorf(codes.InvalidArgument, "the request has no %s", what)
	}
	if err := json.Unmarshal(from.GetJson(), into); err != nil {
		return status.Errorf(codes.InvalidArgument, "%s can't be read: %v", what, err)
	}
	return nil
}

// secretOf returns a Secret with the merged data of the class's Secrets and the name of the first one.
func secretOf(class *v1alpha1.MachineClass, data map[string][]byte) *corev1.Secret {
	secret := &corev1.Secret{Data: data}
	if data == nil {
		secret.Data = map[string][]byte{}
	}
	if named := class.SecretRef; named != nil {
		secret.ObjectMeta = metav1.ObjectMeta{Name: named.Name, Namespace: named.Namespace}
	}
	return secret
}

func volume(spec []byte) (*corev1.PersistentVolumeSpec, error) {
	read := &corev1.PersistentVolumeSpec{}
	if err := json.Unmarshal(spec, read); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "pv_spec_json can't be read: %v", err)
	}
	return read, nil
}

// vm returns the message for the known values of a VM, or nil if there are none.
func vm(providerID, nodeName string, addresses []corev1.NodeAddress) *driverpb.MachineResponse {
	if providerID == "" && nodeName == "" && len(addresses) == 0 {
		return nil
	}
	known := &driverpb.MachineResponse{ProviderId: providerID, NodeName: nodeName}
	for _, address := range addresses {
		known.Addresses = append(known.Addresses, &driverpb.NodeAddress{Type: string(address.Type), Address: address.Address})
	}
	return known
}
