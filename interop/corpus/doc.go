// Package corpus is the golden captures: small files of RoCE traffic, each of which shows one thing, made by the
// kernel's rdma_rxe in the VM lab, or by softnic where rdma_rxe lacks it. They lie in testdata at the root of the repository,
// with one line for each in index.jsonl and in the table of README.md.
//
// make corpus makes all of them anew: TestCorpus of interop/guest writes those of the lab into the job directory, each with its
// Entry beside it, and the command interop/corpus/make adds softnic's own and writes the folder.
//
// The tests of this package, which need no lab and no tshark, hold every file against what package trace/report and trace/replay say of
// it, against three implementations of the ICRC, and the whole against the list of what it has to hold. TestCorpusAsTshark of
// interop/judge puts the files before tshark. What is expected of a file (Entry.Breaks, BadICRC, NoReplay) is written by hand where
// the file is made, never read from what softnic says of it.
//
// Queue pair numbers, keys and times are others in each making: no test may depend on them. The package imports nothing of softnic.
package corpus
