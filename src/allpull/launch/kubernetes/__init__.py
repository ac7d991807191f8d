"""Manifests of Kubernetes jobs: printed to be applied by kubectl; nothing is submitted from here."""
