"""The client bindings: requests out, answers in. They decide nothing."""
