//go:build linux

package uverbs

import "testing"
import "os"
import "strings"
import "fmt"

func TestTmpVMA(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	for i := range 70000 {
		r, err := p.write(legacy(cmdCreateCQ, newStruct("ib_uverbs_create_cq").put("cqe", 1).put("comp_channel", 0xFFFFFFFF), 24))
		if err != nil || r.errno != 0 {
			t.Log(i, r.errno, err)
			break
		}
		if i%10000==0 { b,_:=os.ReadFile("/proc/self/maps"); fmt.Println(i, strings.Count(string(b),"\n")) }
	}
	x := make([][]byte, 0)
	for range 4000 {
		x = append(x, make([]byte, 1<<20))
	}
	t.Log(len(x))
}
