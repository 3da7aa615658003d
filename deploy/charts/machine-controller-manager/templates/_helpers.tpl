{{- /* Conditions and texts that several templates share. A condition is the text "true" or nothing. */ -}}

{{- define "mcm.chart" -}}
{{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "mcm.selector" -}}
app.kubernetes.io/name: machine-controller-manager
{{- end }}

{{- define "mcm.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/name: machine-controller-manager
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ include "mcm.chart" . | quote }}
{{- end }}

{{- /* A hook is not found by the selector of the manager's pods. */ -}}
{{- define "mcm.hookLabels" -}}
app.kubernetes.io/component: uninstall
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/name: machine-controller-manager-uninstall
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ include "mcm.chart" . | quote }}
{{- end }}

{{- /* Annotations of a hook with this weight. A failed job stays, because it has the log. */ -}}
{{- define "mcm.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "mcm.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "mcm.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
  - ALL
{{- end }}

{{- /* Whether the manager runs in this cluster. */ -}}
{{- define "mcm.hasPods" -}}
{{- if ne .Values.part "target" }}true{{ end }}
{{- end }}

{{- /* Whether this cluster has the machine objects. */ -}}
{{- define "mcm.isControl" -}}
{{- if and (include "mcm.hasPods" .) (not .Values.control.kubeconfig.secretName) }}true{{ end }}
{{- end }}

{{- /* Whether this cluster has the Nodes. */ -}}
{{- define "mcm.isTarget" -}}
{{- if or (eq .Values.part "target") (and (eq .Values.part "all") (eq .Values.target.mode "same")) }}true{{ end }}
{{- end }}

{{- /* Whether the manager's account needs rights in this cluster. */ -}}
{{- define "mcm.hasRights" -}}
{{- if or (include "mcm.isControl" .) (include "mcm.isTarget" .) }}true{{ end }}
{{- end }}

{{- /* The clusters whose kubeconfigs the pods read: control, target. */ -}}
{{- define "mcm.kubeconfigs" -}}
{{- if .Values.control.kubeconfig.secretName }}control {{ end }}
{{- if eq .Values.target.mode "kubeconfig" }}target{{ end }}
{{- end }}

{{- define "mcm.machineNamespace" -}}
{{ .Values.machineNamespace | default .Release.Namespace }}
{{- end }}

{{- /* Flags that name both namespaces. */ -}}
{{- define "mcm.namespaceFlags" -}}
{{- if eq (include "mcm.machineNamespace" .) .Release.Namespace }}
- --namespace=$(POD_NAMESPACE)
{{- else }}
- --namespace={{ .Values.machineNamespace }}
- --service-namespace=$(POD_NAMESPACE)
{{- end }}
{{- end }}

{{- /* The end of names outside the namespace, as in `mcm manifests rbac`: installations of two namespaces share none of them. */ -}}
{{- define "mcm.suffix" -}}
{{- $namespace := include "mcm.machineNamespace" . }}
{{- if or (eq .Values.scope "namespace") (ne $namespace "machine-controller-manager") }}-{{ $namespace }}{{ end }}
{{- end }}

{{- define "mcm.viewsSuffix" -}}
{{- if ne .Release.Namespace "machine-controller-manager" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- /* The name of both webhook configurations, as in `mcm manifests webhooks`. */ -}}
{{- define "mcm.configuration" -}}
machine-controller-manager{{ if eq .Values.scope "namespace" }}-{{ include "mcm.machineNamespace" . }}{{ end }}
{{- end }}

{{- define "mcm.half" -}}
{{ .Values.flags.half | default "" }}
{{- end }}

{{- /* Items of a list of CEL. */ -}}
{{- define "mcm.controllerUsers" -}}
'system:serviceaccount:{{ .Release.Namespace }}:machine-controller-manager'
{{- range .Values.webhooks.controllerUsers }}, '{{ . }}'{{ end }}
{{- end }}

{{- define "mcm.webhookUrl" -}}
{{ regexReplaceAll "/+$" .Values.webhooks.url "" }}
{{- end }}

{{- define "mcm.image" -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The alerts select by this label, which the operator would make of the names of monitors and Services. */ -}}
{{- define "mcm.jobLabel" -}}
targetLabel: job
replacement: {{ .Values.metrics.job | quote }}
{{- end }}

{{- define "mcm.healthPort" -}}
{{ int (get .Values.flags "port" | default 10258) }}
{{- end }}

{{- /* The second port of health and metrics; 0 if it is off, or the same as the first one. */ -}}
{{- define "mcm.compatPort" -}}
{{- $port := 10259 }}
{{- if hasKey .Values.flags "compat-port" }}{{ $port = int (get .Values.flags "compat-port") }}{{ end }}
{{- if eq $port (int (include "mcm.healthPort" .)) }}0{{ else }}{{ $port }}{{ end }}
{{- end }}

{{- /* A number of values.yaml is a float in templates, which would print large ones with an exponent. */ -}}
{{- define "mcm.flagValue" -}}
{{- if kindIs "float64" . }}{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "mcm.args" -}}
- serve
{{- if .Values.control.kubeconfig.secretName }}
- {{ printf "--control-kubeconfig=/kubeconfigs/control/%s" .Values.control.kubeconfig.key | quote }}
{{- else }}
- --control-kubeconfig=inClusterConfig
{{- end }}
{{- include "mcm.namespaceFlags" . }}
- --extension-apiserver={{ .Values.views.enabled }}
{{- if eq .Values.target.mode "none" }}
- --target-kubeconfig=none
{{- else if eq .Values.target.mode "kubeconfig" }}
- {{ printf "--target-kubeconfig=/kubeconfigs/target/%s" .Values.target.kubeconfig.key | quote }}
{{- end }}
{{- if and (include "mcm.kubeconfigs" .) (not (hasKey .Values.flags "kubeconfig-reload")) }}
- --kubeconfig-reload=exit
{{- end }}
{{- if ne (int .Values.webhooks.port) 9443 }}
- --secure-port={{ int .Values.webhooks.port }}
{{- end }}
{{- if ne .Values.scope "cluster" }}
- --webhook-scope={{ .Values.scope }}
{{- end }}
{{- if ne .Values.webhooks.profile "compat" }}
- --admission-profile={{ .Values.webhooks.profile }}
{{- end }}
{{- with .Values.webhooks.controllerUsers }}
- {{ printf "--controller-users=%s" (join "," .) | quote }}
{{- end }}
{{- if ne .Values.certificates.mode "self-managed" }}
- --cert-mode=files
- --tls-cert-file=/certs/tls.crt
- --tls-private-key-file=/certs/tls.key
{{- end }}
{{- range $name, $value := .Values.flags }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%s" $name . | quote }}
{{- end }}
{{- else }}
- {{ printf "--%s=%s" $name (include "mcm.flagValue" $value) | quote }}
{{- end }}
{{- end }}
{{- end }}
