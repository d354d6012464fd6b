# make report   measure config/studies/$(STUDY).yaml, or the file STUDY=….yaml, on this machine and build its page
# make paper    the whole study's page, with every figure, table and verdict, from the committed records or from RUNS="…"; no GPU, a minute
# make test     a few honest cases of everything: minutes
# make test-long  whole runs, compilers, browsers and groups of ranks: as long again, and also part of what a change must pass
# make test-all every case, the slow ones included: two hours. Nothing that needs a cluster or builds an image
# make test-images, test-images-all  builds the CPU image and measures in it; the Hopper image as well
# make test-slurm, test-slurm-all    the workflow on a Slurm of several nodes that is made on this machine, as root; in the CPU image, too
# make test-commands                 the commands that README and guides name, as they stand there
# make test-wheel   the wheel in a virtual environment of its own: every command, away from this checkout
# make coverage     the same tests as make test, and the share of each file's lines that they ran: results/coverage/index.html
# make release      all files of a release, from the last commit: dist/release
# make artifact, make site           the Artifact Appendix; the web site of docs/ and of the Python API
# make test-chaos   kills, stops, full disks and the like at random moments of a small study: KILLS=100 of SEED=0 take half an hour
PYTHON ?= python3
SEED ?= 0
KILLS ?= 100
STUDY ?= quick
ARGS ?=
# what ARGS may hold without choosing tests
ALL_THE_SAME := --save -v -vv -q -s -x --durations=%
# long checks note in docs/results/checks.md when they passed; NOTED= has them leave the page alone
NOTED ?= python -m tools.checks $@ $(if $(strip $(filter-out $(ALL_THE_SAME),$(ARGS)) $(filter-out 100,$(KILLS))),part,whole) --
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: report paper test test-long test-all test-chaos test-commands test-wheel test-slurm test-slurm-all setup lint dry-run lock docs clean

# of a dry run the table of jobs is all that there is to see
QUIETLY = $(if $(filter -n --dry-run,$(ARGS)),,--quiet rules host progress)
# a study's name reaches commands as it is: neither make nor the shell runs what is between its backticks or in $$()
unexport STUDY
report: export LONGCA_STUDY := $(value STUDY)
report: setup
	@echo "report: measures $$LONGCA_STUDY, then makes its page; what Snakemake does is in .snakemake/log"
	@snakemake --profile workflow/profiles/local $(QUIETLY) --show-failed-logs $(ARGS) || { \
	log=$$(ls -t .snakemake/log/*.log | head -n 1); \
	echo "report: failed; all that Snakemake did is in $$log" >&2; exit 1; }
	@name=$$(basename "$$LONGCA_STUDY"); page="$(CURDIR)/results/$${name%.y*ml}"; \
	if [ -f "$$page/logs/report.log" ]; then sed '$$d' "$$page/logs/report.log"; fi; echo "$$page/report.html"

paper: setup
	@longca paper $(RUNS)

# on up to four cores, file by file; in one process, where a debugger can stop it: ARGS="-n 0"
test: setup
	@python -m pytest -n logical --maxprocesses 4 --dist loadfile $(ARGS)

test-long: setup
	@python -m pytest -m 'long and not slow' -n logical --maxprocesses 4 --dist loadfile $(ARGS)

# random tests take as many examples as they name, not a part of them. A browser and minisign are installed where
# that is possible: without them some tests are skipped, and docs/results/checks.md keeps its row
test-all: setup
	@tools/install_browser.sh
	@tools/install_minisign.sh
	@$(NOTED) python -m pytest -m 'not slurm and not images' --hypothesis-profile=default $(ARGS)

# ends by itself; says which trial was bad and the command that runs it again. ARGS=--save writes docs/results/reliability.md
test-chaos: setup
	@$(NOTED) python -m tests.chaos --seed $(SEED) --kills $(KILLS) $(ARGS)
	@python -m tests.chaos.faults

# the rest of what pages name is run elsewhere, or is listed as not run: tests/commands/elsewhere.yaml
test-commands: setup
	@python -m pytest tests/commands -m 'commands and not slow' --durations=5 $(ARGS)

# the wheel, in an environment of its own away from this checkout
test-wheel: setup
	@python -m pytest tests/wheel -m 'wheel and not slow' $(ARGS)

# of the lines below longca/ in the process of the tests: what commands, workers and ranks run that tests start is not counted
coverage: setup
	@mkdir -p results/coverage
	@COVERAGE_FILE=results/coverage/data python -m pytest --cov=longca --cov-report=term:skip-covered --cov-report=html:results/coverage $(ARGS)

# ARGS="--sign longca.key --tag v1.0.0"
release: setup
	@python -m tools.release $(ARGS)

# the Artifact Appendix, from the claims and the committed records
artifact: setup
	@python -m tools.artifact

# the web site of docs/ and of the Python API: site/index.html. A dead link, or a page without a place in mkdocs.yml, is an error
site: setup
	@python -m tools.site $(ARGS)

.PHONY: coverage release artifact site

test-slurm test-slurm-all: setup
	@python -m tests.slurm.cluster.machine
	@tools/install_apptainer.sh
	@$(NOTED) python -m pytest tests/slurm -m 'slurm and not $(if $(findstring all,$@),hopper,slow)' -v -rs --durations=0 $(ARGS)

setup:
	@command -v $(PYTHON) >/dev/null || { echo "setup: there is no $(PYTHON). Install Python 3.11 or newer (\`apt-get install python3 python3-venv\`)" >&2; exit 2; }
	@$(PYTHON) tools/setup.py

lint: setup
	ruff check longca tests tools benchmarks examples setup.py
	ruff format --check -q longca tests tools benchmarks examples setup.py
	pyright --threads 2
	snakefmt --check Snakefile workflow
	snakemake --profile workflow/profiles/local --lint

# without an Apptainer here, that of a cluster is one without containers
dry-run: setup
	@command -v apptainer >/dev/null || command -v singularity >/dev/null || \
	  { echo "dry run: no apptainer here, so jobs are shown without containers"; export LONGCA_SITE_CONTAINERS=off; }; \
	for profile in workflow/profiles/* slurm; do \
	  echo "dry run: $$profile"; snakemake --profile $$profile --dry-run --quiet rules || exit 1; done

# after a change of pyproject.toml: resolve all dependencies again, with hashes, for every platform
lock: setup
	uv pip compile pyproject.toml --extra lab --extra dev --extra tokenizers --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header -q -o requirements.lock
	python -m tools.torch_locks
	echo 'mkdocs>=1.6,<2 mkdocstrings[python]>=1' | tr ' ' '\n' | uv pip compile - --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header -q -o tools/site.lock
	echo 'pip-audit cyclonedx-bom' | tr ' ' '\n' | uv pip compile - --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-annotate --no-header -q -o tools/audit.lock

# definition files of the images, from containers/*/image.yaml
containers: setup
	python tools/containers.py write

# the images' locks, resolved again, and the digests of their bases
lock-containers: setup
	python tools/containers.py lock

# the images, each built unless it is there; says why where it cannot be
images: setup
	@for name in $(notdir $(wildcard containers/*)); do longca image get $$name || true; done

# builds the CPU image and measures in it: minutes, and an Apptainer. Says why where it cannot
test-images: setup
	@tools/install_apptainer.sh
	@$(NOTED) python -m pytest -m 'images and not hopper' -rs tests/lab/images $(ARGS)

# the Hopper image as well, and the quick study in it on a Slurm of two nodes: hours where it is built for the first time
test-images-all: setup
	@tools/install_apptainer.sh
	@python -m tests.slurm.cluster.machine
	@$(NOTED) python -m pytest -m 'images or hopper' -rs tests/lab/images tests/slurm $(ARGS)

.PHONY: containers lock-containers images test-images test-images-all

# pages that are made from the code and from the committed records: the architecture page, the settings' schema, the reference, the
# pictures of the masks, the README's heat map and its sentence on fixed orders, rates of new tokens, tables of kernels; last the numbers in
# sentences, some of which are those of the tables before them
docs: setup
	python -m tools.architecture
	python -m tools.schema
	python -m tools.reference
	python -m tools.mask_pictures
	python -m tools.repeats
	python -m tools.heat_map
	python -m tools.fixed_order
	python -m tools.new_tokens
	python -m benchmarks.kernels.kernel_tables $(addprefix reports/h100/,h100-dense.parquet h100-sparse.parquet) --write docs/results/h100/kernels.md > /dev/null
	python -m benchmarks.kernels.kernel_tables $(addprefix reports/h200/,h200-dense.parquet h200-sparse.parquet) --write docs/results/h200/kernels.md > /dev/null
	python -m tools.artifact
	python -m tools.fastest
	python -m tools.verified_tables
	python -m tools.checks
	python -m tests.commands.documented
	python -m tools.triton_builds
	python -m benchmarks.campaign --write
	python -m benchmarks.campaign h200 --write
	python -m tools.values

# which packages of torch.lock and of the images have newer releases, alone and together with the others; needs uv and the index
newer: setup
	@python -m tools.newer

# known vulnerabilities of all that is pinned, asked of PyPI; exit code 1: there are some, 3: the index does not answer for all packages
audit: setup
	@python -m tools.audit audit

# the packages of .venv as a CycloneDX file: results/sbom.cdx.json
sbom: setup
	@python -m tools.audit sbom

.PHONY: newer audit sbom

clean:
	rm -rf results .snakemake
