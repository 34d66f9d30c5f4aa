//! Slow and broken links, between namespaces of the network.
