"""What is learned from whom: a model, a loss, the clients' data, and how their gradients are taken."""
