// Package bench measures how fast two NICs of softnic move messages, as perftest measures adapters.
//
// The command `softnic bench` calls Run, for the side that measures, and Serve, for the other one; OpenPair makes both on this
// machine. The two sides tell each other queue pairs, keys and what is to be done as JSON, one value a line, over any stream: a pipe within the process,
// the standard input and output of a second process, a TCP connection.
//
//	measuring side                                        other side
//	ready                                            --->  its NIC is there (OpenPair alone asks)
//	hello: Config, queue pairs, regions              --->
//	                                                 <---  hello: its own; its queue pairs are connected
//	check: one message was moved on each queue pair  --->
//	                                                 <---  whether every byte is right
//	start                                            --->  counters are read, its loop runs
//	    ... warm-up, then what is timed
//	stop                                             --->
//	                                                 <---  CPU time, packets, allocations
//
// What is counted (CPU time, packets, allocations) is counted over the timed part and the warm-up, and related to
// the bytes and packets of both.
//
// Data is compared before the timed part: a message of a pattern on each queue pair. Atomics are added up
// afterwards, and the sum must be that of all that were executed.
//
// The package knows no flags, and changes nothing about a device to make it faster: it is a program like
// any other.
package bench
