// helm: installs the chart in tests. Built from the module proxy by `make kube-assets`.
module unidle.dev/kube/assets/helm

go 1.26.0

tool helm.sh/helm/v3/cmd/helm
