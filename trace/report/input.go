package report

import (
	"fmt"
	"strings"

	"github.com/softnic/softnic/trace"
)

// input is a file that is read.
type input struct {
	name  string
	r     *trace.Reader
	p     *trace.Packet // the next one
	done  bool
	ids   map[port]int // number of each interface over all files
	place []place      // of each interface
	nic   []int        // its NIC, where it is softnic's
	nics  []nic
}

// port is an interface of a file, or one of those that it stands for.
type port struct {
	iface int
	port  uint64
}

// maxPorts bounds the interfaces of a file that are told apart.
const maxPorts = 1 << 16

// iface numbers the interfaces of all files.
func (a *analysis) iface(f *input, p port) int {
	id, ok := f.ids[p]
	if !ok {
		if len(f.ids) >= maxPorts {
			return 0
		}
		id = a.nextIface
		a.nextIface++
		f.ids[p] = id
	}
	return id
}

// nic is one of softnic's in a file, by the names of its interfaces.
type nic struct {
	name string
	live bool // a packet of its own was seen that was not lost on purpose; or it is the first, of whom the file is
	left bool // before that, some were left out of judgement
}

// nicOf is the number of the NIC that an interface belongs to.
func (f *input) nicOf(name string) int {
	name = name[:strings.LastIndexByte(name, '/')+1]
	for i := range f.nics {
		if f.nics[i].name == name {
			return i
		}
	}
	f.nics = append(f.nics, nic{name: name, live: name == ""})
	return len(f.nics) - 1
}

// nothing says why there is nothing to judge.
func (a *analysis) nothing(in []Input) error {
	names := make([]string, len(in))
	for i := range in {
		names[i] = in[i].Name
	}
	what := fmt.Sprintf("%d packets", a.p.Total)
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{a.p.RoCEv1, "%d of RoCEv1, which is not judged"},
		{a.p.Fragments, "%d UDP fragments, which are not judged"},
		{a.p.UnknownLink, "%d of a link type that cannot be read (" + a.unknownLink() + ")"},
	} {
		if x.n > 0 {
			what += ", " + fmt.Sprintf(x.text, x.n)
		}
	}
	advice := "RoCE goes to UDP port 4791 (--port for others), and an adapter's own traffic is seen only with `tcpdump -i` on the RDMA device, on a mirror port, or in `softnic run --capture`"
	switch {
	case a.p.Total == 0:
		what = "no packets at all"
	case a.p.UnknownLink == a.p.Total:
		advice = "capture on an Ethernet or IP interface"
	case a.p.RoCEv1 > 0:
		advice = "only RoCEv2 is judged: the adapter's GIDs of type RoCE v2 use it (ibv_*_pingpong -g)"
	}
	return &FileError{strings.Join(names, " "), fmt.Errorf("no RoCE packets: %s; %s", what, advice)}
}

func (a *analysis) unknownLink() string {
	for _, f := range a.files {
		for _, i := range f.r.Interfaces() {
			if !i.Link.Known() && i.Packets > 0 {
				return i.Link.String()
			}
		}
	}
	return ""
}
