package judge

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// jobVariable names the folder of a lab run.
const jobVariable = "SOFTNIC_JOB"

// captures are the capture files under a folder.
func captures(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && IsCapture(path) {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// jobDir is the folder of the lab run. Tests run in the folder of their package: a
// relative path is also looked up from the top of the checkout.
func jobDir(value string) string {
	if _, err := os.Stat(value); errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(value) {
		return filepath.Join("..", "..", value)
	}
	return value
}

// TestJob judges every capture of a lab run.
func TestJob(t *testing.T) {
	value := os.Getenv(jobVariable)
	if value == "" {
		t.Skipf("%s names no folder of a lab run: there are no captures to judge", jobVariable)
	}
	needTshark(t)
	dir := jobDir(value)
	files, err := captures(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("%s=%s: no *.pcap or *.pcapng there: the lab run left no capture", jobVariable, dir)
	}
	total := 0
	for _, file := range files {
		name, err := filepath.Rel(dir, file)
		if err != nil {
			name = file
		}
		t.Run(name, func(t *testing.T) {
			findings, frames, err := All(file)
			broken, rerr := Rules(file)
			findings, err = append(findings, broken...), errors.Join(err, rerr)
			total += frames
			t.Logf("%d RoCE frames", frames)
			const most = 50
			for i, f := range findings {
				if i == most {
					t.Errorf("and %d more", len(findings)-most)
					break
				}
				t.Error(f)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	if total == 0 {
		t.Errorf("no RoCE frame in any of the %d captures in %s", len(files), dir)
	}
}

func TestJobDir(t *testing.T) {
	if got := jobDir("no-such-folder"); got != filepath.Join("..", "..", "no-such-folder") {
		t.Error(got)
	}
	if got := jobDir("."); got != "." {
		t.Error(got)
	}
	if got := jobDir("/no/such"); got != "/no/such" {
		t.Error(got)
	}
	if files, err := captures("."); err != nil || len(files) != 0 {
		t.Error(files, err)
	}
	if _, err := captures("/no/such/folder"); err == nil {
		t.Error("a folder that is not there")
	}
}
