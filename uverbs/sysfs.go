//go:build linux

package uverbs

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/softnic/softnic/device"
)

// Major and minor number of the device file that programs believe in.
const devNumbers = "231:192"

// tree is what stands for /sys in the programs: libibverbs reads it below $SYSFS_PATH.
type tree struct {
	root    string
	dev     *device.Device
	version string
	mu      sync.Mutex
	written map[string]string
}

func newTree(path string, dev *device.Device, version string) *tree {
	return &tree{root: SysfsPath(path), dev: dev, version: version, written: map[string]string{}}
}

// files returns the whole tree. Every index below gid_tbl_len has its three files, used or
// not: a file that is missing is an error to libibverbs.
func (t *tree) files() map[string]string {
	d := t.dev.Query()
	name := t.dev.Name()
	guid := fmt.Sprintf("%04x:%04x:%04x:%04x", d.NodeGUID>>48, d.NodeGUID>>32&0xFFFF, d.NodeGUID>>16&0xFFFF, d.NodeGUID&0xFFFF)
	p, _ := t.dev.QueryPort(1)
	state, phys := "1: DOWN", "3: Disabled"
	if p.State == device.PortActive {
		state, phys = "4: ACTIVE", "5: LinkUp"
	}
	verbs, ib := "class/infiniband_verbs/", "class/infiniband/"+name+"/"
	port := ib + "ports/1/"
	f := map[string]string{
		verbs + "abi_version":         "6",
		verbs + "uverbs0/ibdev":       name,
		verbs + "uverbs0/dev":         devNumbers,
		verbs + "uverbs0/abi_version": "2",
		ib + "node_type":              "1: CA",
		ib + "node_guid":              guid,
		ib + "sys_image_guid":         guid,
		ib + "node_desc":              "softnic",
		ib + "fw_ver":                 t.version,
		port + "state":                state,
		port + "phys_state":           phys,
		port + "link_layer":           "Ethernet",
		port + "rate":                 "10 Gb/sec (1X FDR10)",
		port + "cap_mask":             "0x00010000",
		port + "lid":                  "0x0",
		port + "lid_mask_count":       "0",
		port + "sm_lid":               "0x0",
		port + "sm_sl":                "0",
	}
	for i := range p.PKeys {
		k, _ := t.dev.QueryPKey(1, i)
		f[port+"pkeys/"+fmt.Sprint(i)] = fmt.Sprintf("0x%04x", k)
	}
	for i := range p.GIDs {
		g, _ := t.dev.QueryGID(1, i)
		netdev := ""
		if !g.IsZero() {
			netdev = p.Netdev
		}
		n := fmt.Sprint(i)
		f[port+"gids/"+n] = gidText(g)
		f[port+"gid_attrs/types/"+n] = "RoCE v2"
		f[port+"gid_attrs/ndevs/"+n] = netdev
	}
	return f
}

// gidText prints a GID as the kernel does.
func gidText(g device.GID) string {
	s := ""
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			s += ":"
		}
		s += fmt.Sprintf("%02x%02x", g[i], g[i+1])
	}
	return s
}

// write makes the tree.
func (t *tree) write() error { return t.put(true) }

// update rewrites what has changed. It touches no folder that libibverbs knows a device by.
func (t *tree) update() error { return t.put(false) }

func (t *tree) put(folders bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, text := range t.files() {
		old, there := t.written[name]
		if there && old == text {
			continue
		}
		path := filepath.Join(t.root, name)
		if folders {
			if err := mkdirAll(filepath.Dir(path)); err != nil {
				return err
			}
		}
		content := text
		if content != "" {
			content += "\n"
		}
		if err := writeFile(path, []byte(content), 0o644); err != nil {
			return err
		}
		t.written[name] = text
	}
	return nil
}

// mkdirAll makes folders that everybody may read, whatever the umask.
func mkdirAll(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := mkdirAll(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}
