package main

import (
	"io"

	"github.com/softnic/softnic/cmd/softnic/exec"
	"github.com/softnic/softnic/control"
	"github.com/softnic/softnic/uverbs"
	"github.com/softnic/softnic/uverbs/preload"
)

// become makes this process the program args, with the daemon on path.
func become(args []string, path string, start, verbose bool, stderr io.Writer) error {
	return exec.Run(exec.Options{
		Args: args, Path: path, Start: start, Verbose: verbose, Stderr: stderr,
		Present: uverbs.Present, LibraryPath: uverbs.LibraryPath, SysfsPath: uverbs.SysfsPath,
		Library: preload.Library, Folder: control.OwnFolder,
	})
}
