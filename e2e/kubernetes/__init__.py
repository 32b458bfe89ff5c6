"""A real Kubernetes control plane for tests, on loopback, built by e2e/bootstrap."""
