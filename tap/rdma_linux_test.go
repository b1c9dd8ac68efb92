package tap

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fakeRDMA is a kernel with RDMA links on sn0. It keeps a record of what was
// asked of it that changes anything.
type fakeRDMA struct {
	links      []string
	users      map[string]time.Time // device: until when a program has it open
	gone       bool                 // the interface
	linksErr   error
	removeErr  error
	persistErr error
	did        []string
}

func (f *fakeRDMA) kernel() rdmaKernel {
	return rdmaKernel{
		netdev: func() string {
			if f.gone {
				return ""
			}
			return "sn0"
		},
		links: func() ([]string, error) { return slices.Clone(f.links), f.linksErr },
		user: func(d string) string {
			if time.Now().Before(f.users[d]) {
				return "rping (pid 7)"
			}
			return ""
		},
		remove: func(d string, wait time.Duration) error {
			f.did = append(f.did, "remove "+d)
			if f.removeErr != nil {
				return f.removeErr
			}
			f.links = slices.DeleteFunc(f.links, func(l string) bool { return l == d })
			return nil
		},
		persist: func(on bool) error {
			f.did = append(f.did, fmt.Sprint("persist ", on))
			return f.persistErr
		},
	}
}

func TestReleaseRDMA(t *testing.T) {
	const todo = "`rdma link delete rxe0; ip link delete sn0`"
	for _, c := range []struct {
		name string
		fake fakeRDMA
		held time.Duration // how long a program has rxe0 open
		did  string
		want string
	}{
		{"no link", fakeRDMA{}, 0, "persist false", ""},
		{"two links", fakeRDMA{links: []string{"rxe0", "rxe1"}}, 0, "persist true, remove rxe0, remove rxe1, persist false", ""},
		{"a user that ends", fakeRDMA{links: []string{"rxe0"}}, time.Second, "persist true, remove rxe0, persist false", ""},
		{"a user that stays", fakeRDMA{links: []string{"rxe0"}}, time.Hour, "persist true", "rping (pid 7) has rxe0 open: end it, then " + todo},
		{"a user, two links", fakeRDMA{links: []string{"rxe0", "rxe1"}}, time.Hour, "persist true", "then `rdma link delete rxe0; rdma link delete rxe1; ip link delete sn0`"},
		{"not permitted", fakeRDMA{links: []string{"rxe0"}, removeErr: unix.EPERM}, 0, "persist true, remove rxe0", "to remove rxe0 takes CAP_NET_ADMIN: as root, " + todo},
		{"not removable", fakeRDMA{links: []string{"rxe0"}, removeErr: unix.EINVAL}, 0, "persist true, remove rxe0", "rxe0 cannot be removed (invalid argument): " + todo},
		{"links not known", fakeRDMA{linksErr: unix.EIO}, 0, "persist true", "it is not known whether RDMA links are on it"},
		{"cannot persist", fakeRDMA{links: []string{"rxe0"}, persistErr: unix.EIO}, 0, "persist true", "cannot be made persistent"},
		{"cannot unpersist", fakeRDMA{persistErr: unix.EIO}, 0, "persist false", "cannot be made transient (input/output error): `ip link delete sn0`"},
		{"interface gone", fakeRDMA{gone: true}, 0, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				c.fake.users = map[string]time.Time{"rxe0": start.Add(c.held)}
				why := releaseRDMA(c.fake.kernel())
				if c.want == "" && why != "" || !strings.Contains(why, c.want) || strings.Contains(why, "\n") {
					t.Errorf("got %q\nwant %q", why, c.want)
				}
				if did := strings.Join(c.fake.did, ", "); did != c.did {
					t.Errorf("did %s\nwant %s", did, c.did)
				}
				if d := time.Since(start); d > rdmaWait+2*rdmaPoll {
					t.Errorf("took %v", d)
				}
			})
		})
	}
}

// A link that somebody else removes meanwhile, and one that is listed for ever.
func TestReleaseRDMAGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeRDMA{links: []string{"rxe0"}, removeErr: errGone}
		k := f.kernel()
		remove := k.remove
		k.remove = func(d string, wait time.Duration) error {
			if len(f.did) == 3 {
				f.links = nil
			}
			return remove(d, wait)
		}
		if why := releaseRDMA(k); why != "" {
			t.Error(why)
		}
		if did := strings.Join(f.did, ", "); did != "persist true, remove rxe0, remove rxe0, remove rxe0, persist false" {
			t.Error(did)
		}

		f = fakeRDMA{links: []string{"rxe0"}, removeErr: fmt.Errorf("x: %w", errors.Join(errGone))}
		if why := releaseRDMA(f.kernel()); !strings.Contains(why, "rxe0 cannot be removed") {
			t.Error(why)
		}
	})
}
