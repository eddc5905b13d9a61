// The program of the test cluster's image. Standard library only.
module unidle.dev/kube/assets/tool

go 1.26.0
