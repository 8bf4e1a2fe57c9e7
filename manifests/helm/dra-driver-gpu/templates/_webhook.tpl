{{/* Names and decisions of the admission webhook. Nothing here renders an object or refuses a value. */}}

{{/* "true" when the webhook is to be installed, else nothing. */}}
{{- define "dra-driver-gpu.webhook.enabled" -}}
{{- if and .Values.webhook.enabled (include "dra-driver-gpu.enabled" .) -}}true{{- end -}}
{{- end -}}

{{/* Of Deployment, Service, configuration and certificate. */}}
{{- define "dra-driver-gpu.webhook.name" -}}
{{ include "dra-driver-gpu.fullname" . }}-webhook
{{- end -}}

{{/* The DaemonSet's labels with another component, so that neither takes the other's pods. */}}
{{- define "dra-driver-gpu.webhook.selectorLabels" -}}
{{ include "dra-driver-gpu.selectorLabels" . | replace "-component: kubelet-plugin" "-component: webhook" }}
{{- end -}}

{{- define "dra-driver-gpu.webhook.labels" -}}
{{ include "dra-driver-gpu.labels" . | replace "-component: kubelet-plugin" "-component: webhook" }}
{{- end -}}

{{- define "dra-driver-gpu.webhook.serviceAccountName" -}}
{{- $account := .Values.webhook.serviceAccount -}}
{{- if $account.create -}}
{{ $account.name | default (printf "%s-service-account" (include "dra-driver-gpu.fullname" .)) }}-webhook
{{- else -}}
{{ $account.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* The Secret with tls.crt and tls.key. */}}
{{- define "dra-driver-gpu.webhook.secretName" -}}
{{- if eq .Values.webhook.tls.mode "secret" -}}
{{ .Values.webhook.tls.secret.name }}
{{- else -}}
{{ include "dra-driver-gpu.webhook.name" . }}-tls
{{- end -}}
{{- end -}}

{{/* The pod's security context. Ports below 1024 are for root, unless the pod's own network says otherwise. */}}
{{- define "dra-driver-gpu.webhook.podSecurityContext" -}}
{{- $context := deepCopy (.Values.webhook.podSecurityContext | default dict) -}}
{{- if lt (int .Values.webhook.containerPort) 1024 -}}
{{- $sysctl := dict "name" "net.ipv4.ip_unprivileged_port_start" "value" "0" -}}
{{- $context = set $context "sysctls" (append ($context.sysctls | default list) $sysctl) -}}
{{- end -}}
{{ toYaml $context }}
{{- end -}}
