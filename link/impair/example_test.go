package impair_test

import (
	"fmt"
	"log"

	"github.com/softnic/softnic/link/impair"
)

// Rules are made for link.PortOptions.Impair, or added to those of a port that runs (link.Port.Impair).
func ExampleRules() {
	rules, err := impair.New("tx drop=1% seed=7", "rx opcode=ACKNOWLEDGE duplicate nth=10")
	if err != nil {
		log.Fatal(err)
	}
	id, err := rules.Add("tx delay=5ms")
	if err != nil {
		log.Fatal(err)
	}
	if err := rules.Remove(id); err != nil {
		log.Fatal(err)
	}
	for _, s := range rules.List() {
		fmt.Println(s.ID, s.Rule, s.Hits)
	}
	// Output:
	// 1 tx drop=1% seed=7 0
	// 2 rx opcode=ACKNOWLEDGE duplicate nth=10 0
}
