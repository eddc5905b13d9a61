{{- define "unidle.labels" -}}
app.kubernetes.io/name: unidle
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "unidle.selector" -}}
app.kubernetes.io/name: unidle
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}
{{- define "unidle.jobs" -}}
{{ .Values.jobs.namespace | default .Release.Namespace }}
{{- end }}
{{- define "unidle.scoped" -}}
{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end }}
