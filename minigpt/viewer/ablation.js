// The loss without each head.

const NEGLIGIBLE = 0.001; // nats

views.push({
  name: 'ablation',
  title: 'Ablation',
  build(panel) {
    this.cells = [];
    if (!page.ablation) {
      panel.append(unavailable('the loss without each head', '--ablate'));
      return;
    }
    const { loss, increases, tokens } = page.ablation;
    const largest = Math.max(...increases.flat().map(Math.abs), 1e-9);
    const rows = increases.map((row, layer) => [
      `layer ${layerNumber(layer)}`,
      ...row.map((increase, head) => {
        const cell = button(formatSigned(increase), () => change({ layer, head }), { class: 'link' });
        this.cells.push([cell, increase / largest]);
        return cell;
      }),
    ]);
    const negligible = increases.flat().filter(increase => increase <= NEGLIGIBLE).length;
    const title = 'Increase in loss without the head, in nats';
    panel.append(
      intro(
        `How much the loss increases if the output of one head is set to zero. With all heads, the loss is ` +
          `${loss} nats over the first ${tokens.toLocaleString('en')} tokens of the validation split.`,
      ),
      make('p', { text: `Negligible heads (at most ${NEGLIGIBLE} nats each): ${negligible} of ${L * H}.` }),
      scrollArea(title, table(title, ['', ...range(H, head => `head ${head}`)], rows)),
    );
  },
  draw() {
    for (const [cell, share] of this.cells) fill(cell, ramp(Math.max(0, share)));
  },
});
