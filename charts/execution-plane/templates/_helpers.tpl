{{- define "execution-plane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "execution-plane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "execution-plane.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "execution-plane.selector" -}}
app.kubernetes.io/name: {{ include "execution-plane.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "execution-plane.labels" -}}
{{ include "execution-plane.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "execution-plane.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "execution-plane.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "execution-plane.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end }}

{{- /* Settings of one process. A number that YAML read as a float must not become 1e+07. */}}
{{- define "execution-plane.settings" -}}
{{- range $name := list "IDENTITY__ISSUERS" "IDENTITY__GRANTS" }}
{{- $_ := required (printf "settings.%s is required: who may call, and whose tokens are believed" $name) (index $.Values.settings $name) }}
{{- end }}
{{- range $name, $value := .Values.settings }}
EXECUTION_PLANE_{{ $name }}: {{ if or (kindIs "map" $value) (kindIs "slice" $value) }}{{ toJson $value | quote }}{{ else if kindIs "float64" $value }}{{ if eq $value (floor $value) }}{{ printf "%.0f" $value | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
EXECUTION_PLANE_SERVER__HOST: "0.0.0.0"
EXECUTION_PLANE_SERVER__PORT: {{ .Values.containerPort | int | toString | quote }}
EXECUTION_PLANE_SERVER__GRACEFUL_STOP_SECONDS: {{ .Values.gracefulStopSeconds | int | toString | quote }}
{{- if .Values.tls.existingSecret }}
EXECUTION_PLANE_SERVER__TLS_CERTIFICATE_FILE: /run/tls/tls.crt
EXECUTION_PLANE_SERVER__TLS_KEY_FILE: /run/tls/tls.key
{{- end }}
{{- end }}

{{- define "execution-plane.secretFiles" -}}
{{- range $name, $key := .Values.secrets.keys }}
- name: EXECUTION_PLANE_{{ $name }}_FILE
  value: /run/secrets/execution-plane/{{ $key }}
{{- end }}
{{- end }}

{{- define "execution-plane.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "execution-plane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "execution-plane.secretVolume" -}}
- name: secrets
  secret:
    secretName: {{ required "secrets.existingSecret is required: the name of the Secret with the database's address and the keys" .Values.secrets.existingSecret }}
    defaultMode: 0440
    items:
      {{- range $name, $key := .Values.secrets.keys }}
      - key: {{ $key }}
        path: {{ $key }}
      {{- end }}
{{- end }}

{{- /* One Deployment: (dict "root" $ "component" … "role" … "replicas" … "resources" …) */}}
{{- define "execution-plane.deployment" -}}
{{- $ := .root -}}
{{- $component := .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "execution-plane.fullname" $ }}-{{ .component }}
  labels:
    {{- include "execution-plane.labels" $ | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: {{ .replicas }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  selector:
    matchLabels:
      {{- include "execution-plane.selector" $ | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  template:
    metadata:
      labels:
        {{- include "execution-plane.labels" $ | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
        {{- with $.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/settings: {{ include "execution-plane.settings" $ | sha256sum }}
        {{- with $.Values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "execution-plane.serviceAccount" $ }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ add (int $.Values.gracefulStopSeconds) (int $.Values.preStopSeconds) 15 }}
      securityContext:
        {{- include "execution-plane.podSecurity" $ | nindent 8 }}
      {{- with $.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $.Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $.Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $.Values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "execution-plane.selector" $ | nindent 14 }}
              app.kubernetes.io/component: {{ $component }}
        {{- end }}
      containers:
        - name: service
          image: {{ include "execution-plane.image" $ }}
          imagePullPolicy: {{ $.Values.image.pullPolicy }}
          args: [serve]
          ports:
            - name: http
              containerPort: {{ $.Values.containerPort }}
          envFrom:
            - configMapRef:
                name: {{ include "execution-plane.fullname" $ }}
          env:
            - name: EXECUTION_PLANE_ROLE
              value: {{ .role }}
            {{- include "execution-plane.secretFiles" $ | trim | nindent 12 }}
            {{- with $.Values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          startupProbe:
            {{- include "execution-plane.probe" (dict "root" $ "path" "/livez") | nindent 12 }}
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            {{- include "execution-plane.probe" (dict "root" $ "path" "/livez") | nindent 12 }}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            {{- include "execution-plane.probe" (dict "root" $ "path" "/readyz") | nindent 12 }}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 2
          {{- if $.Values.preStopSeconds }}
          lifecycle:
            preStop:
              exec:
                command: [sleep, {{ $.Values.preStopSeconds | int | toString | quote }}]
          {{- end }}
          resources:
            {{- toYaml .resources | nindent 12 }}
          securityContext:
            {{- include "execution-plane.containerSecurity" $ | nindent 12 }}
          volumeMounts:
            - name: secrets
              mountPath: /run/secrets/execution-plane
              readOnly: true
            - name: tmp
              mountPath: /tmp
            {{- if $.Values.tls.existingSecret }}
            - name: tls
              mountPath: /run/tls
              readOnly: true
            {{- end }}
            {{- with $.Values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "execution-plane.secretVolume" $ | nindent 8 }}
        - name: tmp
          emptyDir: {}
        {{- if $.Values.tls.existingSecret }}
        - name: tls
          secret:
            secretName: {{ $.Values.tls.existingSecret }}
            defaultMode: 0440
        {{- end }}
        {{- with $.Values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}

{{- define "execution-plane.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tls.existingSecret "") }}
{{- end }}
