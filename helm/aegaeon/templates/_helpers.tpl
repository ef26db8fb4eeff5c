{{/* Name of the release's objects. */}}
{{- define "aegaeon.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}-operator
{{- end }}

{{/* Labels by which the operator's pods are selected; they never change. */}}
{{- define "aegaeon.selector" -}}
app.kubernetes.io/name: aegaeon-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "aegaeon.labels" -}}
{{ include "aegaeon.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{/* References of the images: as they are given where they have a tag or a digest, else with that of `images.tag`. */}}
{{- define "aegaeon.controlImage" -}}
{{ include "aegaeon.image" (list . .Values.images.control) }}
{{- end }}

{{- define "aegaeon.engineImage" -}}
{{ include "aegaeon.image" (list . .Values.images.engine) }}
{{- end }}

{{- define "aegaeon.vllmImage" -}}
{{ include "aegaeon.image" (list . .Values.images.engineVllm) }}
{{- end }}

{{- define "aegaeon.image" -}}
{{- $root := first . }}
{{- $name := last . }}
{{- /* A colon before the last slash is of the registry's port. */}}
{{- if or (contains "@" $name) (contains ":" (base $name)) -}}
{{ $name }}
{{- else -}}
{{ $name }}:{{ default $root.Chart.AppVersion $root.Values.images.tag }}
{{- end }}
{{- end }}

{{/* What every container of this chart may do: nothing. */}}
{{- define "aegaeon.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "aegaeon.podSecurity" -}}
runAsNonRoot: true
{{- if eq .Values.securityContext "fixed" }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The bundled Redis. */}}
{{- define "aegaeon.redis" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}-redis
{{- end }}

{{- define "aegaeon.redisSelector" -}}
app.kubernetes.io/name: aegaeon-redis
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Secret with what gateways need beside Redis' URL, and its entries. */}}
{{- define "aegaeon.redisSecret" -}}
{{- if .Values.redis.bundled }}{{ include "aegaeon.redis" . }}{{ else }}{{ .Values.redis.existingSecret }}{{ end }}
{{- end }}

{{- define "aegaeon.redisUrl" -}}
{{- if .Values.redis.bundled }}rediss://{{ include "aegaeon.redis" . }}.{{ .Release.Namespace }}.svc:6379/0{{ else }}{{ .Values.redis.url }}{{ end }}
{{- end }}

{{/* What endpoint pickers may: made by rbac.yaml. */}}
{{- define "aegaeon.pickerRole" -}}
{{- if .Values.operator.watchNamespaces }}Role/{{ include "aegaeon.name" . }}-picker{{ else }}ClusterRole/{{ include "aegaeon.name" . }}-{{ .Release.Namespace }}-picker{{ end }}
{{- end }}

{{/* What schedulers may: made by rbac.yaml. */}}
{{- define "aegaeon.schedulerRole" -}}
{{- if .Values.operator.watchNamespaces }}Role/{{ include "aegaeon.name" . }}-scheduler{{ else }}ClusterRole/{{ include "aegaeon.name" . }}-{{ .Release.Namespace }}-scheduler{{ end }}
{{- end }}

{{/* Those that are given, and for how long a pod stays on a node that is lost unless they say so: else it is 5 minutes. */}}
{{- define "aegaeon.tolerations" -}}
{{- $all := . }}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- $covered := false }}
{{- range $ }}
{{- if and (eq (default $key .key) $key) (eq (default "NoExecute" .effect) "NoExecute") }}
{{- $covered = true }}
{{- end }}
{{- end }}
{{- if not $covered }}
{{- $all = append $all (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 2) }}
{{- end }}
{{- end }}
{{- toYaml $all }}
{{- end }}
