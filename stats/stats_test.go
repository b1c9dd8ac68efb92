package stats

import (
	"strings"
	"testing"
)

func TestCounters(t *testing.T) {
	dev := NewCounters(3, nil)
	a, b := NewCounters(3, dev), NewCounters(3, dev)
	a.Inc(SentPkts)
	b.Add(SentPkts, 4)
	b.AddOwn(RcvdPkts, 7)
	dev.Inc(RcvdPkts)
	dev.Inc(LinkDowned)
	a.Drop(1)
	b.Drop(2)
	b.DropOwn(2)
	for _, c := range []struct {
		name string
		of   *Counters
		want string // those that are not 0
		not  string // those that are not there
	}{
		{"device", dev, "sent_pkts 5 rcvd_pkts 1 link_downed 1 drop_one 1 drop_two 1", "drop_"},
		{"a", a, "sent_pkts 1 drop_one 1", "drop_ link_downed rx_icrc_encapsulated mad_answered mad_dropped"},
		{"b", b, "sent_pkts 4 rcvd_pkts 7 drop_two 2", "drop_ link_downed rx_icrc_encapsulated mad_answered mad_dropped"},
	} {
		var got []string
		seen := map[string]bool{}
		for _, v := range c.of.Values(func(i int) string { return []string{"", "one", "two"}[i] }) {
			if v.Name == "" || seen[v.Name] {
				t.Errorf("%s: %q is there twice, or has no name", c.name, v.Name)
			}
			seen[v.Name] = true
			if v.Value > 0 {
				got = append(got, v.Name, string('0'+rune(v.Value)))
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
		for n := range strings.FieldsSeq(c.not) {
			if seen[n] {
				t.Errorf("%s: %s is shown", c.name, n)
			}
		}
	}
}
