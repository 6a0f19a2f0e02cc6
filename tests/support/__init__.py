"""What the tests stand on: real servers, a faulty network, real app servers."""
