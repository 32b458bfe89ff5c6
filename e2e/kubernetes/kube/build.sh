#!/bin/sh
# build.sh OUT: links the one Kubernetes program from the module beside this file. e2e/bootstrap
# calls it with the Go caches set; all files here are the key under which the program is cached.
set -eu
cd "$(dirname "$0")"
# kubectl, Helm and the discovery of features ask for the version; without these stamps it is
# v0.0.0. They are fixed, and paths are trimmed, so that every checkout builds the same bytes.
stamps=
for stamp in gitVersion=v1.34.4 gitMajor=1 gitMinor=34 gitTreeState=clean \
  gitCommit=0000000000000000000000000000000000000000 buildDate=1970-01-01T00:00:00Z; do
  stamps="$stamps -X k8s.io/component-base/version.$stamp"
done
CGO_ENABLED=0 exec go build -v -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w $stamps" \
  -o "$1" .
