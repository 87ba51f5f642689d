{{- define "paceline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "paceline.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "paceline.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "paceline.operatorName" -}}
{{ include "paceline.fullname" . }}-operator
{{- end }}

{{- /* The Deployment's selector, which can never change: nothing with a version may join it. */ -}}
{{- define "paceline.selectorLabels" -}}
app.kubernetes.io/name: {{ include "paceline.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "paceline.labels" -}}
{{ include "paceline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "paceline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "paceline.operatorName" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* An image reference out of (dict "root" $ "image" .Values.image); a digest wins over a tag. */ -}}
{{- define "paceline.image" -}}
{{- $registry := default .image.registry .root.Values.global.imageRegistry -}}
{{- $repository := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- if .image.digest -}}
{{ printf "%s@%s" $repository .image.digest }}
{{- else -}}
{{ printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) }}
{{- end -}}
{{- end }}

{{- define "paceline.certificateSecret" -}}
{{- default (printf "%s-webhook" (include "paceline.fullname" .)) .Values.webhook.certificate.existingSecret }}
{{- end }}
