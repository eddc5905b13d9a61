"""A Kubernetes cluster on this machine: real kubelets in network and mount namespaces, a control plane, kwok's nodes.

``scripts/kube`` is the command, ``make kube-assets`` builds what it starts. Read ``layout.py`` first: names and addresses.
"""
