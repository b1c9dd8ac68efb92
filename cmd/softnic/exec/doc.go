// Package exec becomes an unmodified verbs program that sees softnic's device: `softnic exec -- CMD`.
//
//	Run ─ Find, Inspect     the program: is it there, and will its loader take the library?
//	    ─ connect           the daemon on PATH, or one that it starts and that ends with its last program
//	    ─ library           libsoftnic.so, from where it may be mapped
//	    ─ Environ, execve   same process: signals, terminal and exit code are the program's own
//
// The process that runs CMD keeps a connection to the daemon open from before its first
// instruction, so that a daemon which ends with its last program stays for one that opens the
// device late, and for its children.
//
// The command exec calls Run, and `softnic run --detach` calls Detach. What it needs of the
// socket for programs comes as functions: the package does not know their protocol.
// It opens no NIC, and changes nothing in the program but its environment.
package exec
