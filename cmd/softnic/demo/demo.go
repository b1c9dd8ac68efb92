package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
)

// Options of a demo. The zero value is a demo that prints nothing.
type Options struct {
	File    string    // the capture; "": softnic-demo.pcapng
	Seed    uint64    // of patterns and of what is lost by chance; 0: 1
	Verbose bool      // one line for each packet that is sent again
	Out     io.Writer // what happens, in order; nil: nobody

	memory bool // for tests: a link in memory
}

// Report is what a demo did.
type Report struct {
	Link            string           `json:"link"`
	Fallback        string           `json:"fallback,omitempty"` // why it is not UDP port 4791
	NICs            []NIC            `json:"nics"`
	Operations      []Row            `json:"operations"`
	Retransmissions []Retransmission `json:"retransmissions"`
	Refusals        []Refusal        `json:"refusals"`
	Capture         string           `json:"capture"`
	Frames          int              `json:"frames"`
	Spoiled         int              `json:"spoiled"` // of them, whose ICRC is wrong on purpose
	Trace           *Trace           `json:"trace"`
	Verified        bool             `json:"verified"` // all data, and all ICRCs
}

// NIC is one of the two.
type NIC struct {
	Name   string `json:"name"`
	Device string `json:"ifname"`
	Link   string `json:"link"`
	GID    string `json:"gid"`
	RCQPN  uint32 `json:"rc_qpn"`
	UDQPN  uint32 `json:"ud_qpn"`
}

// Row is a row of the table: messages that arrived with every byte right.
type Row struct {
	Operation     string `json:"operation"`
	Sizes         []int  `json:"sizes"`
	Messages      int    `json:"messages"`
	Bytes         int    `json:"bytes"`
	Retransmitted int    `json:"retransmitted"` // packets
	Verified      bool   `json:"verified"`
}

// Refusal is a request that was refused, with what was seen of it.
type Refusal struct {
	Request string `json:"request"`
	NAK     string `json:"nak"`
	Status  string `json:"status"` // of the requester's completion
	Event   string `json:"event"`  // at the NIC that refused
}

// demo is one run.
type demo struct {
	opts    Options
	report  Report
	start   time.Time
	a, b    *nic
	active  int // MTU
	message uint64

	recorded int // frames that the file must have
}

// Run runs the demo. The report is there also where it fails, as far as it came.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.File == "" {
		o.File = "softnic-demo.pcapng"
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	d := &demo{opts: o, start: time.Now()}
	d.report.Capture, d.report.Retransmissions = o.File, []Retransmission{}
	err := d.run(ctx)
	return &d.report, err
}

func (d *demo) run(ctx context.Context) error {
	file, err := os.Create(d.opts.File)
	if err != nil {
		return fmt.Errorf("%w: choose another with -o", err)
	}
	err = d.record(ctx, file)
	err = errors.Join(err, file.Close())
	if err != nil {
		return err
	}
	d.report.Frames, d.report.Spoiled, err = checkFile(d.opts.File)
	if err == nil && d.report.Frames != d.recorded {
		err = fmt.Errorf("%d frames were recorded and %d are in the file", d.recorded, d.report.Frames)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.opts.File, err)
	}
	d.table()
	if err := d.judge(); err != nil {
		return err
	}
	d.report.Verified = true
	d.printf("\nall data verified, %d frames, every ICRC right but the one that was spoiled: %s (open it with wireshark)\n", d.report.Frames, d.opts.File)
	return nil
}

// record runs everything, with the capture going to w.
func (d *demo) record(ctx context.Context, w io.Writer) error {
	ea, eb, why := openLinks(d.opts.memory)
	d.report.Link, d.report.Fallback = "UDP port 4791", why
	if why != "" {
		d.report.Link = "a link in memory"
		d.printf("%s.\nThe demo uses a link in memory instead; the packets are the same.\n\n", why)
	}
	file, err := capture.NewWriter(w, ea.Info(), capture.Options{})
	if err != nil {
		return errors.Join(err, ea.Close(), eb.Close())
	}
	second, err := file.Add("b", eb.Info())
	if err != nil {
		return errors.Join(err, ea.Close(), eb.Close())
	}
	// The file is what is on a's wire, and what was taken off it at b's end.
	err = d.withNICs(ctx, ea, eb, d.watch("a", file, nil), d.watch("b", second, onlyLost))
	err = errors.Join(err, file.Close())
	if n := file.Lost(); err == nil && n > 0 {
		err = fmt.Errorf("%s: the disk was too slow: %d frames are missing", d.opts.File, n)
	}
	return err
}

func (d *demo) withNICs(ctx context.Context, ea, eb link.Endpoint, wa, wb *watcher) (err error) {
	d.a, err = newNIC("a", "rxe_softnic0", ea, wa)
	if err != nil {
		return errors.Join(err, eb.Close())
	}
	defer func() {
		err = errors.Join(err, d.a.dev.Close())
		d.recorded = wa.frames + wb.frames // nothing records any more
	}()
	d.b, err = newNIC("b", "rxe_softnic1", eb, wb)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.b.dev.Close()) }()
	if err := errors.Join(d.a.connect(d.b), d.b.connect(d.a)); err != nil {
		return err
	}
	port, err := d.a.dev.QueryPort(1)
	if err != nil {
		return err
	}
	d.active = port.ActiveMTU
	d.introduce()
	if err := d.operations(ctx); err != nil {
		return err
	}
	if err := d.faults(ctx); err != nil {
		return err
	}
	return d.refusals(ctx)
}

func (d *demo) watch(name string, next link.Sink, wants func(*link.Record) bool) *watcher {
	return &watcher{nic: name, start: d.start, next: next, wants: wants, rnr: make(chan struct{}, 1)}
}

func (d *demo) introduce() {
	d.printf("Two RDMA NICs in this process talk RoCEv2 over %s:\n\n", d.report.Link)
	for _, n := range []*nic{d.a, d.b} {
		x := NIC{n.name, n.dev.Name(), n.dev.Port().Info().Name, n.gid.String(), n.rc.Num(), n.ud.Num()}
		d.report.NICs = append(d.report.NICs, x)
		d.printf("  %s  %s on %s, GID %s, RC qp 0x%06x, UD qp 0x%06x\n", x.Name, x.Device, x.Link, x.GID, x.RCQPN, x.UDQPN)
	}
}

// next returns the pattern of the next message.
func (d *demo) next(n int) pattern {
	d.message++
	return pattern{d.opts.Seed, d.message, n}
}

// operations runs every operation at every size.
func (d *demo) operations(ctx context.Context) error {
	d.printf("\nThe operations, at the sizes where segmentation has its corners (path MTU %d). Connections are reliable (RC)\n"+
		"or not (UC), or there is none (UD). Each message has a pattern of its own, and what lies behind it must stay as it was.\n", pathMTU)
	run := func(o operation, sizes []int) error {
		row := Row{Operation: o.name, Sizes: sizes}
		for _, n := range sizes {
			if err := o.run(ctx, d.a, d.b, d.next(n), nil); err != nil {
				return err
			}
			row.Messages++
			row.Bytes += n
		}
		d.add(row, d.retried())
		return nil
	}
	for _, o := range rcOperations {
		if err := run(o, rcSizes); err != nil {
			return err
		}
	}
	for _, f := range []func(context.Context) error{d.atomics, d.windows} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	for _, o := range []operation{opUCSend, opUCWrite} {
		if err := run(o, ucSizes); err != nil {
			return err
		}
	}
	for _, o := range []operation{opUD, opUDImm} {
		if err := run(o, udSizes(d.active)); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) retried() []Retransmission { return append(d.a.retried(), d.b.retried()...) }

// add adds a row.
func (d *demo) add(row Row, again []Retransmission) {
	row.Retransmitted, row.Verified = len(again), true
	d.report.Operations = append(d.report.Operations, row)
	slices.SortStableFunc(again, inOrder)
	d.report.Retransmissions = append(d.report.Retransmissions, again...)
	d.list(again)
}

// faults has things go wrong.
func (d *demo) faults(ctx context.Context) error {
	d.printf("\nNow packets are lost on purpose, by rules such as --impair takes. What RC sends again because of it:\n\n")
	d.printf(listHead, "        time", "from", "to qp", "opcode", "PSN", "cause", "round")
	for _, f := range faults(d.opts.Seed) {
		d.printf("\n  %s: %s\n", f.title, f.story)
		again, err := f.play(ctx, d.a, d.b, d.next(f.size))
		if err != nil {
			d.list(again)
			return err
		}
		d.add(Row{Operation: f.title, Sizes: []int{f.size}, Messages: 1, Bytes: f.size}, again)
	}
	const size = 1000
	d.printf("\n  UD SEND, 2nd of 3 lost: nobody sends a datagram again; the other two arrive\n")
	got, err := lostDatagram(ctx, d.a, d.b, size, d.next)
	if err != nil {
		return fmt.Errorf("UD SEND, 2nd of 3 lost: %w", err)
	}
	d.add(Row{Operation: "UD SEND, 2nd of 3 lost", Sizes: []int{size}, Messages: got, Bytes: got * size}, d.retried())
	return nil
}
