#!/bin/sh
# build.sh OUT: builds kwok, and puts the stages that tests use beside it as stages.yaml. It cannot
# be part of the one Kubernetes program, as it wants other versions of the same modules.
set -eu
cd "$(dirname "$0")"
CGO_ENABLED=0 go build -v -mod=readonly -trimpath -buildvcs=false -ldflags '-s -w' -o "$1" \
  sigs.k8s.io/kwok/cmd/kwok
stages=$(go list -mod=readonly -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
for stage in node/fast/node-initialize pod/fast/pod-ready pod/fast/pod-delete; do
  cat "$stages/$stage.yaml"
  echo ---
done >"$(dirname "$1")/stages.yaml"
