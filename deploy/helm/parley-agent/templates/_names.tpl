{{- define "parley-agent.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "parley-agent.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "parley-agent.labels" -}}
{{ include "parley-agent.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The replicas of a role: its values over replicaDefaults, with its name and selector. */}}
{{- define "parley-agent.roles" -}}
{{- $all := dict }}
{{- range $role, $own := .Values.roles }}
{{- if not (kindIs "invalid" $own) }}
{{- $name := include "parley-agent.name" $ }}
{{- if ne $role "both" }}{{ $name = printf "%s-%s" $name $role }}{{ end }}
{{- $_ := set $all $role (mergeOverwrite (dict "name" $name) (deepCopy $.Values.replicaDefaults) $own) }}
{{- end }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{- define "parley-agent.account" -}}
{{- if .Values.serviceAccount.create }}{{ include "parley-agent.name" . }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- /* What the pods of replicas and of the migration have alike. */}}
{{- define "parley-agent.pod" -}}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: tmp
    emptyDir: {}
{{- end }}

{{- define "parley-agent.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  # Variables, which nobody sees in `ps`.
  - name: PARLEY_STORE
    valueFrom: {secretKeyRef: {name: {{ .Values.stores.secret }}, key: {{ .Values.stores.storeKey }}}}
  - name: PARLEY_BUS
    valueFrom: {secretKeyRef: {name: {{ .Values.stores.secret }}, key: {{ .Values.stores.busKey }}, optional: true}}
  {{- if .Values.podMonitor.enabled }}
  - {name: PARLEY_METRICS, value: "1"}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- end }}
