{{/* Names, labels and small decisions that several templates share. Nothing here renders an object or refuses a value. */}}

{{- define "dra-driver-gpu.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters: with its suffix the DaemonSet's name can still be a label. */}}
{{- define "dra-driver-gpu.fullname" -}}
{{- $name := include "dra-driver-gpu.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $full | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "dra-driver-gpu.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "dra-driver-gpu.selectorLabels" -}}
{{- if .Values.selectorLabelsOverride -}}
{{ toYaml .Values.selectorLabelsOverride }}
{{- else -}}
app.kubernetes.io/name: {{ include "dra-driver-gpu.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{ include "dra-driver-gpu.name" . | trunc 50 | trimSuffix "-" }}-component: kubelet-plugin
{{- end -}}

{{- define "dra-driver-gpu.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "dra-driver-gpu.selectorLabels" . }}
{{- end -}}

{{/* The one place that knows it: pod, bindings and admission policy must mean the same account. */}}
{{- define "dra-driver-gpu.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (printf "%s-service-account" (include "dra-driver-gpu.fullname" .)) }}-kubeletplugin
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "dra-driver-gpu.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default (printf "v%s" .Chart.AppVersion)) -}}
{{- end -}}

{{/* "true" when GPUs are to be served, else nothing. */}}
{{- define "dra-driver-gpu.enabled" -}}
{{- if .Values.resources.gpus.enabled -}}true{{- end -}}
{{- end -}}

{{- define "dra-driver-gpu.resourceApiVersion" -}}
{{- if .Values.resourceApiVersion -}}
{{ .Values.resourceApiVersion }}
{{- else if .Capabilities.APIVersions.Has "resource.k8s.io/v1" -}}
resource.k8s.io/v1
{{- else if .Capabilities.APIVersions.Has "resource.k8s.io/v1beta2" -}}
resource.k8s.io/v1beta2
{{- else -}}
resource.k8s.io/v1beta1
{{- end -}}
{{- end -}}

{{/* A=true,B=false in the order of the names. */}}
{{- define "dra-driver-gpu.featureGates" -}}
{{- $gates := list -}}
{{- range $name := keys .Values.featureGates | sortAlpha -}}
{{- $gates = append $gates (printf "%s=%v" $name (get $.Values.featureGates $name)) -}}
{{- end -}}
{{- join "," $gates -}}
{{- end -}}

{{/* "true" when a feature gate is switched on by the values. Call with (list . "Name"). */}}
{{- define "dra-driver-gpu.gateOn" -}}
{{- $values := (index . 0).Values -}}
{{- $gate := get $values.featureGates (index . 1) -}}
{{- if eq (toString $gate) "true" -}}true{{- end -}}
{{- end -}}

{{/* a,b of a list of {name: a}, {name: b}. */}}
{{- define "dra-driver-gpu.names" -}}
{{- $names := list -}}
{{- range . -}}{{- $names = append $names .name -}}{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* "true" when MPS control daemons are to be Deployments. */}}
{{- define "dra-driver-gpu.mps.deployments" -}}
{{- if and (include "dra-driver-gpu.gateOn" (list . "MPSSupport")) (eq .Values.mps.launcher "deployment") -}}true{{- end -}}
{{- end -}}

{{/* "true" when they are, or when some of before are still there, which the driver then has to end. */}}
{{- define "dra-driver-gpu.mps.rights" -}}
{{- $found := include "dra-driver-gpu.mps.deployments" . -}}
{{- if not $found -}}
{{- range (lookup "apps/v1" "Deployment" (include "dra-driver-gpu.namespace" .) "").items -}}
{{- if eq (get (.metadata.labels | default dict) "app.kubernetes.io/component") "mps-control-daemon" -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* The HTTP endpoint's port if the kubelet can reach it from outside the pod, else nothing. */}}
{{- define "dra-driver-gpu.httpPort" -}}
{{- $endpoint := .Values.kubeletPlugin.metrics.gpuHttpEndpoint | default "" -}}
{{- if regexMatch `^(|0\.0\.0\.0|\[::\]):[0-9]+$` $endpoint -}}
{{ regexFind `[0-9]+$` $endpoint }}
{{- end -}}
{{- end -}}

{{/* The API server refuses maxSurge and maxUnavailable both above 0, and both 0: what one leaves open, the other decides. */}}
{{- define "dra-driver-gpu.updateStrategy" -}}
{{- $strategy := .Values.kubeletPlugin.updateStrategy | default dict -}}
{{- $type := $strategy.type | default "RollingUpdate" -}}
type: {{ $type }}
{{- if eq $type "RollingUpdate" }}
{{- $rolling := $strategy.rollingUpdate | default dict }}
rollingUpdate:
  {{- if hasKey $rolling "maxSurge" }}
  maxSurge: {{ $rolling.maxSurge }}
  maxUnavailable: {{ get $rolling "maxUnavailable" | default 0 }}
  {{- else if hasKey $rolling "maxUnavailable" }}
  {{- $none := has (toString $rolling.maxUnavailable) (list "0" "0%") }}
  maxSurge: {{ ternary 1 0 $none }}
  maxUnavailable: {{ $rolling.maxUnavailable }}
  {{- else }}
  maxSurge: 1
  maxUnavailable: 0
  {{- end }}
{{- end }}
{{- end -}}

{{/* The ConfigMap of the sharing profile. */}}
{{- define "dra-driver-gpu.sharingProfile" -}}
{{ include "dra-driver-gpu.fullname" . }}-sharing-profile
{{- end -}}

{{/* Where the driver reads it; its last part is the ConfigMap's key. */}}
{{- define "dra-driver-gpu.sharingProfilePath" -}}
/etc/dra-driver-gpu/sharing/profile.yaml
{{- end -}}
