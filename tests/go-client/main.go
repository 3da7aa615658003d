// A typical Go client: client-go's informers, dynamic client, patches and evictions against the API server of a kubeconfig. It prints one line per
// step and ends with exit code 0 when all results are correct. The definition of the kind Thing (tests/conformance/things.yaml) must be installed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const timeout = 30 * time.Second

var things = schema.GroupVersionResource{Group: "probe.example.com", Version: "v1", Resource: "things"}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of an administrator")
	namespace := flag.String("namespace", "go-client", "namespace, made for this run")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, *kubeconfig, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, "go-client:", err)
		os.Exit(1)
	}
}

// The state of a run: clients over one transport whose connections can be closed and whose requests are recorded.
type world struct {
	namespace string
	wire      *wire
	typed     kubernetes.Interface
	dynamic   dynamic.Interface
	discovery discovery.DiscoveryInterface
	// Requests protobuf first, as most controllers do.
	protobuf kubernetes.Interface
}

func run(ctx context.Context, kubeconfig, namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	w := &world{namespace: namespace, wire: &wire{}}
	config.QPS, config.Burst = 200, 400
	config.Dial = w.wire.dial
	config.WrapTransport = w.wire.remember
	compact := rest.CopyConfig(config)
	compact.ContentType = "application/vnd.kubernetes.protobuf"
	compact.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if w.typed, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if w.protobuf, err = kubernetes.NewForConfig(compact); err != nil {
		return err
	}
	if w.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	w.discovery = w.typed.Discovery()
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := w.protobuf.CoreV1().Namespaces().Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	steps := []struct {
		name string
		does func(context.Context) error
	}{
		{"discovery", w.discover},
		{"informer through create, update and delete", w.inform},
		{"dynamic informer and client", w.informDynamically},
		{"watch list instead of list and watch", w.watchesTheList},
		{"reconnect after a cut", w.reconnect},
		{"patches", w.patch},
		{"eviction", w.evict},
		{"pages", w.pages},
	}
	for _, step := range steps {
		if err := step.does(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println("ok", step.name)
	}
	fmt.Printf("go-client: %d steps passed\n", len(steps))
	return nil
}

// The events of objects, by name and in order.
type events struct {
	sync.Mutex
	seen []string
}

func (e *events) add(what, name string) {
	e.Lock()
	defer e.Unlock()
	e.seen = append(e.seen, what+" "+name)
}

func (e *events) of(name string) []string {
	e.Lock()
	defer e.Unlock()
	var found []string
	for _, event := range e.seen {
		if strings.HasSuffix(event, " "+name) {
			found = append(found, strings.TrimSuffix(event, " "+name))
		}
	}
	return found
}

func (e *events) follow(informer cache.SharedIndexInformer) error {
	name := func(object any) string {
		key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		return key[strings.LastIndex(key, "/")+1:]
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { e.add("added", name(object)) },
		UpdateFunc: func(_, object any) { e.add("updated", name(object)) },
		DeleteFunc: func(object any) { e.add("deleted", name(object)) },
	})
	return err
}

// Waits until an object has exactly these events.
func (e *events) become(name string, wanted ...string) error {
	return eventually(func() error {
		if found := e.of(name); strings.Join(found, ",") != strings.Join(wanted, ",") {
			return fmt.Errorf("%s: %v instead of %v", name, found, wanted)
		}
		return nil
	})
}

func eventually(holds func() error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := holds()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (w *world) discover(context.Context) error {
	groups, err := restmapper.GetAPIGroupResources(w.discovery)
	if err != nil {
		return err
	}
	mapper := restmapper.NewShortcutExpander(restmapper.NewDiscoveryRESTMapper(groups), memory.NewMemCacheClient(w.discovery), nil)
	found, err := mapper.ResourceFor(schema.GroupVersionResource{Resource: "th"})
	if err != nil {
		return err
	}
	if found != things {
		return fmt.Errorf("th is %v", found)
	}
	return nil
}

func (w *world) inform(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	factory := informers.NewSharedInformerFactoryWithOptions(w.protobuf, 0, informers.WithNamespace(w.namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	var received events
	if err := received.follow(informer); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	maps := w.protobuf.CoreV1().ConfigMaps(w.namespace)
	made, err := maps.Create(ctx, configMap("informed"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Data["a"] = "2"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	made.Data["a"] = "3"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("an update of an old version: %v", err)
	}
	if err := maps.Delete(ctx, "informed", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if _, err := maps.Get(ctx, "informed", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("a deleted object: %v", err)
	}
	return received.become("informed", "added", "updated", "deleted")
}

func (w *world) informDynamically(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(w.dynamic, 0, w.namespace, nil)
	informer := factory.ForResource(things).Informer()
	var received events
	if err := received.follow(informer); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	client := w.dynamic.Resource(things).Namespace(w.namespace)
	made, err := client.Create(ctx, thing("dynamic", "red"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if replicas, _, _ := unstructured.NestedInt64(made.Object, "spec", "replicas"); replicas != 1 {
		return fmt.Errorf("no default: %v", made.Object["spec"])
	}
	if _, err := client.Create(ctx, thing("pink", "pink"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		return fmt.Errorf("a wrong colour: %v", err)
	}
	scale, err := client.Get(ctx, "dynamic", metav1.GetOptions{}, "scale")
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(scale.Object, int64(4), "spec", "replicas"); err != nil {
		return err
	}
	if _, err := client.Update(ctx, scale, metav1.UpdateOptions{}, "scale"); err != nil {
		return err
	}
	if err := client.Delete(ctx, "dynamic", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return received.become("dynamic", "added", "updated", "deleted")
}

// With streaming lists, informers never send a plain list.
func (w *world) watchesTheList(ctx context.Context) error {
	maps := w.typed.CoreV1().ConfigMaps(w.namespace)
	for _, name := range []string{"listed-1", "listed-2"} {
		if _, err := maps.Create(ctx, configMap(name), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	before := len(w.wire.requests())
	factory := informers.NewSharedInformerFactoryWithOptions(w.typed, 0, informers.WithNamespace(w.namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for _, name := range []string{"listed-1", "listed-2"} {
		if _, found, _ := informer.GetStore().GetByKey(w.namespace + "/" + name); !found {
			return fmt.Errorf("%s is not in the store after the first list", name)
		}
	}
	streamed := false
	for _, request := range w.wire.requests()[before:] {
		if !strings.Contains(request, "/configmaps?") {
			continue
		}
		if !strings.Contains(request, "watch=true") {
			return fmt.Errorf("a plain list was sent: %s", request)
		}
		streamed = streamed || strings.Contains(request, "sendInitialEvents=true")
	}
	if !streamed {
		return errors.New("no request asked for initial events")
	}
	return nil
}

func (w *world) reconnect(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	factory := informers.NewSharedInformerFactoryWithOptions(w.typed, 0, informers.WithNamespace(w.namespace))
	var received events
	if err := received.follow(factory.Core().V1().ConfigMaps().Informer()); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	maps := w.typed.CoreV1().ConfigMaps(w.namespace)
	for round := range 3 {
		name := fmt.Sprintf("cut-%d", round)
		if cut := w.wire.cut(); cut == 0 {
			return errors.New("there was no connection to cut")
		}
		create := func() error {
			_, err := maps.Create(ctx, configMap(name), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		}
		if err := eventually(create); err != nil {
			return err
		}
		if err := received.become(name, "added"); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) patch(ctx context.Context) error {
	maps := w.typed.CoreV1().ConfigMaps(w.namespace)
	if _, err := maps.Create(ctx, configMap("patched"), metav1.CreateOptions{}); err != nil {
		return err
	}
	patches := []struct {
		kind types.PatchType
		body string
	}{
		{types.MergePatchType, `{"data":{"merge":"1"}}`},
		{types.JSONPatchType, `[{"op":"test","path":"/data/a","value":"1"},{"op":"add","path":"/data/json","value":"1"}]`},
		{types.StrategicMergePatchType, `{"data":{"strategic":"1"}}`},
	}
	for _, patch := range patches {
		if _, err := maps.Patch(ctx, "patched", patch.kind, []byte(patch.body), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("%s: %w", patch.kind, err)
		}
	}
	applied := corev1apply.ConfigMap("patched", w.namespace).WithData(map[string]string{"applied": "1"})
	found, err := maps.Apply(ctx, applied, metav1.ApplyOptions{FieldManager: "go-client"})
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	var keys []string
	for key := range found.Data {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	if wanted := "a,applied,json,merge,strategic"; strings.Join(keys, ",") != wanted {
		return fmt.Errorf("keys %v instead of %s", keys, wanted)
	}
	other := corev1apply.ConfigMap("patched", w.namespace).WithData(map[string]string{"applied": "2"})
	if _, err := maps.Apply(ctx, other, metav1.ApplyOptions{FieldManager: "other"}); !apierrors.IsConflict(err) {
		return fmt.Errorf("another's field was applied over: %v", err)
	}
	failing := []byte(`[{"op":"test","path":"/data/a","value":"other"}]`)
	if _, err := maps.Patch(ctx, "patched", types.JSONPatchType, failing, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		return fmt.Errorf("a test that fails: %v", err)
	}
	status, _ := json.Marshal(map[string]any{"status": map[string]any{"phase": "P"}})
	client := w.dynamic.Resource(things).Namespace(w.namespace)
	if _, err := client.Create(ctx, thing("patched", "red"), metav1.CreateOptions{}); err != nil {
		return err
	}
	patched, err := client.Patch(ctx, "patched", types.MergePatchType, status, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	if phase, _, _ := unstructured.NestedString(patched.Object, "status", "phase"); phase != "P" {
		return fmt.Errorf("status %v", patched.Object["status"])
	}
	return nil
}

func (w *world) evict(ctx context.Context) error {
	pods := w.protobuf.CoreV1().Pods(w.namespace)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "evicted"},
		Spec:       corev1.PodSpec{NodeName: "nowhere", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	made, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Phase = corev1.PodRunning
	if _, err := pods.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted", Namespace: w.namespace}}
	if err := pods.EvictV1(ctx, eviction); err != nil {
		return err
	}
	left, err := pods.Get(ctx, "evicted", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if left.DeletionTimestamp == nil || *left.DeletionGracePeriodSeconds != 30 {
		return fmt.Errorf("the evicted pod: %+v", left.ObjectMeta)
	}
	absent := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "absent", Namespace: w.namespace}}
	if err := pods.EvictV1(ctx, absent); !apierrors.IsNotFound(err) {
		return fmt.Errorf("eviction of nothing: %v", err)
	}
	return nil
}

func (w *world) pages(ctx context.Context) error {
	client := w.dynamic.Resource(things).Namespace(w.namespace)
	for at := range 5 {
		object := thing(fmt.Sprintf("page-%d", at), "green")
		if _, err := client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	var names []string
	options := metav1.ListOptions{Limit: 2, FieldSelector: "spec.color=green"}
	for {
		list, err := client.List(ctx, options)
		if err != nil {
			return err
		}
		for _, item := range list.Items {
			names = append(names, item.GetName())
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}
	if wanted := "page-0,page-1,page-2,page-3,page-4"; strings.Join(names, ",") != wanted {
		return fmt.Errorf("%v instead of %s", names, wanted)
	}
	return nil
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "1"}}
}

func thing(name, color string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "probe.example.com/v1",
		"kind":       "Thing",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"color": color},
	}}
}

// Records the connections and requests of all clients.
type wire struct {
	sync.Mutex
	open  []net.Conn
	asked []string
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		w.Lock()
		defer w.Unlock()
		w.open = append(w.open, conn)
	}
	return conn, err
}

// Closes all connections. Returns their number.
func (w *wire) cut() int {
	w.Lock()
	defer w.Unlock()
	count := len(w.open)
	for _, conn := range w.open {
		conn.Close()
	}
	w.open = nil
	return count
}

func (w *wire) requests() []string {
	w.Lock()
	defer w.Unlock()
	return append([]string(nil), w.asked...)
}

func (w *wire) remember(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(request *http.Request) (*http.Response, error) {
		w.Lock()
		w.asked = append(w.asked, request.Method+" "+request.URL.RequestURI())
		w.Unlock()
		return next.RoundTrip(request)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
