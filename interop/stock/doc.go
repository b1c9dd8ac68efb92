// Package stock is the tests that run unmodified verbs programs, as the distribution has them, on softnic through
// `softnic exec`: the ibv_* tools, perftest, UCX, and programs on pyverbs. It has no code outside of its tests.
//
//	SOFTNIC_STOCK=1 go test ./interop/stock
//
// runs them on this machine; without the variable every test skips, with it a program that is missing is a failure.
// interop/run.sh sets it. They need Linux, gcc, and Debian's ibverbs-utils, ibverbs-providers, libibverbs-dev,
// perftest, python3-pyverbs and ucx-utils; no RDMA in the kernel, and root only where the user changes.
//
//	SOFTNIC_BIN=FILE     use this softnic; otherwise one is built
//	SOFTNIC_JOB=DIR      captures and packet logs stay in DIR/stock, where interop/judge looks at them with tshark too
//	SOFTNIC_LONG=1       longer: 1,000 starts of a program, every size of perftest in both modes
//
// Every pair of programs runs in two modes: both on one daemon, where they meet inside it, and on two daemons, where
// the packet counters of both must have grown by what the messages take.
//
// What proves the data: perftest looks at none, and the ping-pong tools, with -c, at the first byte of each page
// on the server. Every byte is compared by the tests on pyverbs only: those that drive testdata/agent.py.
// rdma-core's own tests on pyverbs are no part of it: make pyverbs runs them.
//
// Servers are waited for until their TCP port listens, conditions are polled for; nothing here is a measurement of speed.
package stock
