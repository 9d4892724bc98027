{{- define "ottla.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ottla.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ottla.labels" -}}
{{ include "ottla.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* "true" if the metadata is in ZooKeeper. */ -}}
{{- define "ottla.clustered" -}}
{{- if .Values.zookeeper.connect }}true{{ end }}
{{- end }}

{{- /* The first and the last port of /metrics and /health: brokers that share a pod have those after it. */ -}}
{{- define "ottla.metricsPorts" -}}
{{- if gt (int .Values.brokersPerPod) 1 }}
{{- range $number := until (int .Values.brokersPerPod) }}
- {{ add $.Values.metrics.port $number 1 }}
{{- end }}
{{- else }}
- {{ .Values.metrics.port }}
{{- end }}
{{- end }}

{{- /* The ports of clients: brokers that share a pod have one each after the one that they share. */ -}}
{{- define "ottla.clientPorts" -}}
- {{ .Values.listeners.internal.port }}
{{- if gt (int .Values.brokersPerPod) 1 }}
{{- range $number := until (int .Values.brokersPerPod) }}
- {{ add $.Values.listeners.internal.port $number 1 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What values.schema.json cannot say. */ -}}
{{- define "ottla.check" -}}
{{- $external := .Values.listeners.external }}
{{- if and (gt (int .Values.replicas) 1) (not .Values.zookeeper.connect) }}
{{- fail "replicas > 1 needs zookeeper.connect: the address of the ZooKeeper that has the cluster's metadata" }}
{{- end }}
{{- if and (gt (int .Values.brokersPerPod) 1) .Values.zookeeper.connect }}
{{- fail "brokersPerPod > 1 is for a pod without zookeeper.connect: use replicas" }}
{{- end }}
{{- if and $external.enabled (not .Values.zookeeper.connect) }}
{{- fail "listeners.external needs zookeeper.connect" }}
{{- end }}
{{- if and $external.enabled (not $external.hostTemplate) }}
{{- fail "listeners.external needs hostTemplate: the name at which clients reach pod {index}" }}
{{- end }}
{{- if and $external.enabled (eq $external.type "NodePort") (not $external.nodePortBase) }}
{{- fail "listeners.external of type NodePort needs nodePortBase: pod N has the port nodePortBase + N" }}
{{- end }}
{{- if and (contains "SSL" (printf "%s %s" .Values.listeners.internal.protocol (ternary $external.protocol "" $external.enabled))) (not .Values.tls.secret) }}
{{- fail "a listener with SSL needs tls.secret: a secret with tls.crt and tls.key" }}
{{- end }}
{{- end }}
