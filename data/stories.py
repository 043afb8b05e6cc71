"""A seeded generator of small English stories that knows the exact probability of what it writes.

Every random decision goes through `Dice`, which adds -log p to `dice.nats`.  The mean over documents is
the entropy of the derivation - an upper bound of, and nearly equal to, the entropy of the text - so the
held-out loss of a model can be compared with the best loss that any model could reach.

    python storygen.py --docs 5 --seed 1          # print a few stories
"""
from __future__ import annotations

import argparse
import math
import random
import re
from dataclasses import dataclass

# ------------------------------------------------------------------------------------------ words
GIRLS = ("Anna Mia Lily Emma Sara Nora Ella Zoe Ruby Clara Ida Maya Lena Rosa Tilda Ivy Hana Amina Olga Greta "
         "Wilma Juno Carla Dina Elif Frida Petra Selma Tessa Vera").split()
BOYS = ("Tom Ben Max Leo Sam Finn Omar Paul Jack Noah Emil Hugo Karl Luca Milo Nico Otto Pete Rudi Theo "
        "Anton Bruno Cem Dario Erik Felix Gus Henry Ivan Jonas").split()
PETS = "Bobo Fluff Rex Coco Pip Bella Rusty Spot Tiko Momo Ziggy Pepper Dot Snow Lucky Shadow".split()
COLORS = "red blue green yellow white black brown pink purple orange grey golden".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NUM = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
       "seventeen eighteen nineteen twenty").split()
GOOD = "happy glad proud excited thankful cheerful pleased calm lucky merry hopeful delighted".split()
BAD = "sad angry worried upset sorry lonely tired hurt scared jealous bored ashamed".split()
MOVE = "went walked ran hurried rode skipped wandered marched raced strolled rushed tiptoed".split()
HOW = "quickly slowly quietly happily carefully bravely proudly gently loudly sleepily eagerly silently".split()
SAY = "said said said whispered shouted answered replied called cried laughed sang".split()
TIME = "morning afternoon evening night day".split()

# noun[/plural]: kind: adjectives that suit it: places where it is found
THINGS = """
ball: toy: round bouncy old: park garden beach
kite: toy: light long pretty: hill beach park
doll: toy: little soft pretty: bedroom attic shop
drum: toy: loud big round: school attic hall
teddy/teddies: toy: soft warm old: bedroom attic shop
robot: toy: shiny clever small: shop bedroom school
train: toy: wooden long fast: station shop bedroom
puzzle: toy: hard big new: library school bedroom
sled: toy: fast wooden old: hill barn attic
boat: toy: small wooden fast: lake river beach
puppet: toy: funny wooden strange: hall school attic
marble: toy: round shiny tiny: school park garden
balloon: toy: light round big: market park hall
swing: toy: high wooden new: park garden school
apple: food: sweet juicy shiny: orchard market kitchen
pear: food: ripe sweet soft: orchard market kitchen
plum: food: ripe juicy dark: orchard market garden
carrot: food: crunchy fresh long: farm garden kitchen
cookie: food: warm sweet crunchy: bakery kitchen school
bun: food: warm fresh soft: bakery market kitchen
cake: food: sweet big creamy: bakery kitchen hall
pie: food: hot sweet round: bakery kitchen market
egg: food: fresh white small: farm barn kitchen
fish/fish: food: fresh silver big: lake harbor market
cheese: food: old strong soft: market farm kitchen
nut: food: hard brown small: forest park market
berry/berries: food: wild ripe tiny: forest hill garden
mushroom: food: wild fresh brown: forest market hill
pumpkin: food: huge round heavy: farm garden market
lemon: food: sour fresh bright: market kitchen orchard
potato/potatoes: food: hot brown big: farm market kitchen
candy/candies: food: sweet sticky tiny: shop market school
sandwich: food: fresh thick cold: school station kitchen
ladder: tool: tall wooden strong: barn farm orchard
rope: tool: long strong thick: harbor barn ship
lamp: tool: bright small old: cave attic cellar
umbrella: tool: big dry folded: station school shop
hammer: tool: heavy strong old: workshop barn cellar
saw: tool: sharp old heavy: workshop barn forest
net: tool: wide long strong: harbor lake ship
bucket: tool: full old heavy: farm barn beach
shovel: tool: big heavy strong: garden farm beach
key: tool: tiny rusty old: castle cellar hall
map: tool: old folded secret: ship castle library
whistle: tool: loud shiny small: station school ship
blanket: tool: warm soft thick: bedroom castle barn
broom: tool: long old clean: kitchen hall shop
needle: tool: thin sharp shiny: workshop shop attic
bandage: tool: clean white soft: school hospital ship
candle: tool: bright thin warm: church castle cellar
clock: tool: loud old tall: station church library
mirror: tool: clear round tall: bedroom museum castle
spoon: tool: silver big wooden: kitchen hall market
wheel: tool: round heavy broken: workshop farm station
hat: wear: wide warm funny: market shop beach
scarf/scarves: wear: long warm soft: shop bedroom market
coat: wear: thick warm heavy: shop hall bedroom
boot: wear: muddy heavy strong: farm barn hall
glove: wear: thin warm lost: station park school
sock: wear: thick warm dirty: bedroom shop cellar
dress: wear: pretty long new: shop hall castle
mask: wear: funny scary strange: hall museum school
crown: gem: shiny heavy royal: castle cave museum
ring: gem: thin shiny precious: castle museum lake
coin: gem: old shiny tiny: cave museum river
pearl: gem: round precious shiny: beach ship museum
shell: gem: pretty smooth tiny: beach river harbor
stone: gem: smooth flat heavy: river hill cave
feather: gem: light soft pretty: forest barn hill
bone: gem: old white strange: cave forest museum
book: read: thick old funny: library school bedroom
letter: read: secret short kind: station library hall
picture: read: pretty big strange: museum school hall
ticket: read: cheap old lucky: station museum ship
flute: music: thin old wooden: school hall museum
violin: music: fine old precious: hall museum shop
bell: music: loud heavy shiny: church castle ship
trumpet: music: loud shiny golden: hall school church
flower: plant: pretty fresh wild: garden hill park
leaf/leaves: plant: dry big pretty: forest park garden
seed: plant: tiny dry strange: garden farm shop
rose: plant: red fresh pretty: garden park castle
"""
# place: preposition: is it a place to live near: things people do there
PLACES = """
park: in: y: fed the ducks, sat on a bench, rode a bike, played tag
garden: in: y: picked flowers, watered the beans, dug a hole, watched the bees
beach: on: y: built a sand castle, swam in the waves, looked for crabs, lay in the sun
hill: on: y: rolled down the grass, watched the clouds, flew a glider, counted sheep
bedroom: in: n: made the bed, read a comic, played with blocks, hid under the desk
attic: in: n: opened dusty boxes, found a spider, put on old clothes, looked through the window
shop: in: y: looked at the toys, asked for the price, paid at the counter, waited in line
school: at: y: learned to spell, drew on the board, ate lunch, wrote a test
hall: in: y: danced in a circle, sang a song, clapped for the actors, learned a play
station: at: y: watched the engines, waited for grandmother, read the signs, bought a magazine
library: in: y: read about dragons, whispered with a friend, looked at maps, returned three novels
barn: in: y: jumped into the hay, fed the calf, milked a goat, swept the straw
lake: at: y: rowed to the island, threw pebbles, fished from the dock, skated on the ice
river: at: y: built a dam, crossed the bridge, caught tadpoles, washed the cart
orchard: in: y: shook the branches, picked fruit, climbed a trunk, slept in the shade
market: at: y: tasted the honey, sold eggs, talked with the butcher, carried heavy bags
kitchen: in: n: baked bread, washed the dishes, peeled onions, stirred the soup
farm: on: y: rode the tractor, chased the chickens, planted corn, brushed the pony
bakery: in: y: smelled the dough, tasted a pretzel, rolled out pastry, served the guests
forest: in: y: built a hut, followed deer tracks, listened to the birds, gathered sticks
harbor: at: y: counted the sails, mended ropes, greeted the captain, unloaded barrels
ship: on: n: climbed the mast, steered past the rocks, cleaned the deck, looked for whales
cave: in: y: lit a torch, heard an echo, saw bats, drew on the wall
cellar: in: n: counted bottles, chased a rat, stored jam, repaired a shelf
workshop: in: y: painted a chair, sharpened knives, sanded boards, glued a vase
castle: in: y: climbed the tower, bowed to the queen, explored the dungeon, polished armor
hospital: in: y: visited an uncle, thanked the nurse, got some medicine, rested for a week
museum: in: y: admired the statues, drew a dinosaur, listened to the guide, studied fossils
church: in: y: lit candles, heard the choir, looked at the ceiling, rang for the wedding
"""
# animal[/plural]: sound: food: bed: adjectives
ANIMALS = """
cat: meowed: milk: basket: soft lazy proud
dog: barked: sausage: kennel: loyal happy brown
cow: mooed: clover: meadow: big calm gentle
horse: neighed: hay: stable: fast proud strong
duck: quacked: bread: pond: small funny wet
hen: clucked: wheat: coop: busy fat brown
mouse/mice: squeaked: crumbs: hole: tiny quick shy
owl: hooted: beetles: tree: wise old quiet
frog: croaked: flies: pond: green wet funny
bear: growled: honey: cave: big strong hungry
wolf/wolves: howled: meat: den: grey lonely hungry
lion: roared: meat: shade: proud strong golden
bee: buzzed: nectar: hive: busy tiny quick
snake: hissed: eggs: hole: long quiet clever
pig: grunted: turnips: mud: fat pink happy
goat: bleated: grass: stable: stubborn old funny
crow: cawed: seeds: nest: black clever proud
rabbit: thumped: carrots: burrow: shy quick soft
fox: yelped: berries: den: clever red quick
squirrel: chattered: nuts: nest: quick tiny clever
parrot: screeched: fruit: cage: green loud funny
donkey: brayed: thistles: shed: stubborn grey strong
elephant: trumpeted: leaves: zoo: huge wise gentle
monkey: shrieked: bananas: tree: funny clever loud
"""
# job: workplace: tool: material: verb: products
JOBS = """
baker: bakery: oven: flour: baked: bun cookie cake pie
farmer: farm: plow: soil: harvested: carrot pumpkin potato
tailor: workshop: thimble: cloth: sewed: coat dress hat
knitter: shop: yarn: wool: knitted: scarf sock glove
carpenter: workshop: plane: wood: built: ladder sled boat
smith: workshop: anvil: iron: forged: key bell hammer
fisher: harbor: hook: bait: caught: fish shell pearl
jeweler: shop: magnifier: gold: polished: ring crown coin
painter: museum: brush: paint: painted: picture mask
writer: library: pen: paper: wrote: book letter
toymaker: shop: glue: felt: made: train teddy puppet doll
gardener: garden: rake: water: grew: flower rose berry
cook: kitchen: knife: butter: prepared: sandwich pie cheese
chandler: church: mold: wax: poured: candle
"""
# problem: the tool that solves it: what was done with it
PROBLEMS = """
a kitten sat high up in an oak and could not get down: ladder: climbed up and carried the kitten down
a lamb had fallen into a deep pit: rope: pulled the lamb out of the pit
it was so dark that nobody could see the path: lamp: lit the path until everyone was home
heavy rain began to fall and an old woman got wet: umbrella: held it over the old woman
the fence was broken and the sheep ran away: hammer: fixed the fence before sunset
a branch lay across the road and no wagon could pass: saw: cut the branch into pieces
the wind had blown a cap into the water: net: fished the cap out of the water
a small fire burned in the dry grass: bucket: threw water on the fire until it was out
a cart was stuck deep in the snow: shovel: dug the cart out of the snow
the gate was locked and a child was crying inside: key: opened the gate and let the child out
two travelers had lost their way: map: showed them the right way
a raft was drifting straight at the rocks: whistle: warned the sailors just in time
a lost puppy was shaking from the cold: blanket: wrapped the puppy until it was warm
there was broken glass all over the floor: broom: swept the floor until it was safe
the sail had a long tear: needle: sewed the sail together again
a young rider had hurt his knee: bandage: covered the wound on the knee
the lights went out and a baby was afraid: candle: made a small light for the baby
nobody knew when the coach would leave: clock: told everyone the right hour
"""
# trait: what such a person does with a found purse: lesson
TRAITS = """
honest: took the purse back to its owner: it is good to tell the truth
greedy: kept all the coins and told nobody: those who want too much lose what they have
kind: gave the coins to a hungry family: a kind heart is worth more than gold
lazy: left the purse there and took a nap: nothing happens when you only sleep
curious: opened the purse and found a strange note inside: good questions open doors
careful: gave the purse to the police: it is wise to think first
brave: ran after the thief who had dropped it: courage helps us all
shy: hid the purse and blushed: a quiet voice can be heard too
clever: saw the name in the purse and wrote a card: a good idea saves a long walk
vain: showed the purse to everyone and bragged: pride comes before a fall
"""
WEATHER = """
rainy: umbrella: got wet: stayed dry
snowy: scarf: was freezing: stayed warm
windy: coat: was shaking: felt warm
sunny: hat: got a red nose: was safe from the sun
icy: glove: had cold fingers: had warm hands
muddy: boot: got dirty feet: kept clean feet
foggy: lamp: lost the way: found the way
"""
BOXES = ("in box, in basket, in drawer, in bag, in cupboard, in jar, in chest, in pot, under table, under chair, "
         "under sofa, under rug, behind door, behind curtain, on shelf, on roof").split(", ")
KIN = "mother:father sister:brother aunt:uncle grandmother:grandfather friend:friend cousin:cousin".split()
BIG = "fast tall strong old loud clever brave rich".split()  # for comparisons: faster, taller, ...


def table(text):
    return [[c.strip() for c in line.split(":")] for line in text.strip().splitlines()]


def an(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


@dataclass(eq=False)
class Thing:
    s: str
    pl: str
    kind: str
    adj: list
    where: list

    @classmethod
    def read(cls, noun, kind="", adj="", where=""):
        s, _, pl = noun.partition("/")
        return cls(s, pl or s + ("es" if s.endswith(("s", "x", "ch", "sh")) else "s"), kind, adj.split(), where.split())

    def n(self, k):
        return f"{NUM[k]} {self.s if k == 1 else self.pl}"

    __str__ = lambda self: self.s


@dataclass(eq=False)
class Person:
    name: str
    girl: bool

    def form(self, k):
        i = not self.girl
        w = {"he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his"), "kid": ("girl", "boy")}[k.lower()][i]
        return w.capitalize() if k[0].isupper() else w

    __str__ = lambda self: self.name


OBJ = [Thing.read(*row) for row in table(THINGS)]
THING = {t.s: t for t in OBJ}
PLACE = {r[0]: (f"{r[1]} the {r[0]}", [x.strip() for x in r[3].split(",")]) for r in table(PLACES)}
NEAR = [r[0] for r in table(PLACES) if r[2] == "y"]
ANI = [(Thing.read(r[0]), r[1], r[2], r[3], r[4].split()) for r in table(ANIMALS)]
SMALL = [t for t in OBJ if t.s not in "ladder sled pumpkin swing wheel clock boat".split()]
COUNT = [t for t in OBJ if t.kind in ("food", "gem", "plant") or t.s in "book kite bell ball marble balloon ticket candle".split()]
BY_PLACE = {p: [t for t in OBJ if p in t.where] for p in PLACE}


class Dice:
    """A random source that remembers how improbable its choices were."""

    def __init__(self, seed):
        self.r, self.nats = random.Random(seed), 0.0

    def pick(self, seq, zipf=0.0):
        """One element; with zipf > 0 the first ones are more frequent than the last ones."""
        w = [(i + 4) ** -zipf for i in range(len(seq))]
        x = seq[self.r.choices(range(len(seq)), w)[0]]
        self.nats -= math.log(sum(v for y, v in zip(seq, w) if y is x or y == x) / sum(w))
        return x

    def flip(self, p):
        yes = self.r.random() < p
        self.nats -= math.log(p if yes else 1 - p)
        return yes

    def num(self, lo, hi):
        return self.pick(range(lo, hi + 1))

    def sample(self, seq, k, zipf=0.0):
        out = []
        for _ in range(k):
            out.append(self.pick([x for x in seq if x not in out], zipf))
        return out


SLOT = re.compile(r"\[(\w+)(?:\.(\w+))?\]")
Z = 0.7  # how uneven names, things and places are


class Writer:
    """`say` writes a sentence: {a|b} is a choice, [x] a value, <<...>> marks what earlier text determines."""

    def __init__(self, dice):
        self.d, self.out, self.names = dice, [], []

    # ---- the writing machine
    def expand(self, t):
        i = t.find("{")
        if i < 0:
            return t
        depth, j, cuts = 0, i, [i]
        while True:
            depth += (t[j] == "{") - (t[j] == "}")
            if depth == 1 and t[j] == "|":
                cuts.append(j)
            if depth == 0:
                break
            j += 1
        cuts.append(j)
        options = [t[a + 1:b] for a, b in zip(cuts, cuts[1:])]
        return t[:i] + self.expand(self.d.pick(options) + t[j + 1:])

    def say(self, template, **v):
        s = SLOT.sub(lambda m: v[m[1]].form(m[2]) if m[2] else str(v[m[1]]), self.expand(template))
        k = 2 if s.startswith("<<") else 0
        self.out.append(s[:k] + s[k].upper() + s[k + 1:])

    def talk(self, who, what, **v):
        verb, what = self.d.pick(SAY), self.expand(what)
        if self.d.flip(0.6):
            self.say(f'"{what[:-1] if what[-1] == "." else what}{"," if what[-1] == "." else ""}" {verb} [_w].', _w=who, **v)
        else:
            self.say(f'[_w] {verb}, "{what}"', _w=who, **v)

    def person(self):
        girl = self.d.flip(0.5)
        self.names.append(self.d.pick([n for n in (GIRLS if girl else BOYS) if n not in self.names], Z))
        return Person(self.names[-1], girl)

    def place(self, *but):
        return self.d.pick([p for p in PLACE if p not in but], Z)

    def desc(self, t):
        return self.d.pick(COLORS, 0.4) if self.d.flip(0.5) else self.d.pick(t.adj)

    # ---- sentences that many stories share
    def intro(self, A, place=None):
        k = self.d.num(0, 3)
        if k == 0:
            self.say("{Once upon a time|Long ago|One day|Once} there was a {little|young|tall|small} [A.kid] {named|called} [A].", A=A)
        elif k == 1:
            self.say("[A] was a {little|young|cheerful|quiet|busy} [A.kid] from the house near the [p].", A=A, p=self.d.pick(NEAR, Z))
        elif k == 2:
            self.say("It was a {warm|cold|bright|quiet|long|dark|fine} [t] and [A] was {at home|awake early|outside|in a good mood}.",
                     A=A, t=self.d.pick(TIME))
        else:
            self.say("It was [day]{ morning| evening|}. [A] {wanted|had|planned} to {go out|help at home|see a friend|do something new}.",
                     A=A, day=self.d.pick(DAYS))
        if self.d.flip(0.25):
            self.likes(A)
        if place:
            self.go(A, place)

    def go(self, A, place, then=""):
        how = self.d.pick(HOW) + " " if self.d.flip(0.25) else ""
        self.say((then or "{[A]|[A.He]}") + f" {self.d.pick(MOVE, 0.5)} {how}to the [p].", A=A, p=place)
        if self.d.flip(0.3):
            self.say("[A.He] [do]{ with a friend| there||}.", A=A, do=self.d.pick(PLACE[place][1]))
        if self.d.flip(0.4):
            self.scene(place)

    def scene(self, place):
        """What is to be seen at a place: things that belong there, adjectives that suit them."""
        *most, last = [an(f"{self.desc(t)} {t}") for t in self.d.sample(BY_PLACE[place], self.d.num(1, min(3, len(BY_PLACE[place]))))]
        self.say("{There|Here} {was|stood|lay} [l].", l=", ".join(most) + " and " + last if most else last)

    def likes(self, A):
        food, a = self.d.pick([t for t in OBJ if t.kind == "food"], Z), self.d.pick(ANI, Z)
        self.say("[A.He] {liked|loved} [c] [t], [x] [f] and [y] [a].", A=A, c=self.d.pick(COLORS, 0.4), t=self.d.pick([t for t in OBJ if t.kind == "wear"]).pl,
                 x=self.d.pick(food.adj), f=food.pl, y=self.d.pick(a[4]), a=a[0].pl)

    def animal(self):
        a = self.d.pick(ANI, Z)
        self.say("A [x] [a] <<[s]>> {near the road|behind a tree|in the grass|somewhere}.", x=self.d.pick(a[4]), a=a[0], s=a[1])

    def end(self, A, good=True):
        k = self.d.num(0, 4)
        if k < 2:
            f = self.d.pick(GOOD if good else BAD, 0.4)
            self.say("[A] {was|felt} {very |so |}[f]." if k else "In the {end|evening}, [A] {was|felt} [f] and {went home|went to bed|fell asleep}.",
                     A=A, f=f)
        elif k == 2:
            self.say("[A] {never forgot|often thought of|told everyone about|dreamed of} that [t].", A=A, t=self.d.pick(TIME))

    # ---- kinds of story
    def hide(self):
        """Someone hides a thing, someone else moves it: where will the first one look?"""
        d, A, B = self.d, self.person(), self.person()
        t = d.pick(SMALL, Z)
        adj = self.desc(t)
        place = d.pick(t.where)
        self.intro(A, place)
        box, box2 = d.sample(BOXES, 2, Z)
        (p1, x1), (p2, x2), c = box.split(), box2.split(), d.pick(COLORS, 0.4)
        self.say("[A.He] had [a] [t]. [A] {put|hid|left|placed} the <<[t]>> [p] the [c] [x].", A=A, a=an(adj), t=t, p=p1, c=c, x=x1)
        other = self.place(place)
        self.go(A, other, "Then [A.he]")
        moved = d.flip(0.7)
        self.say("{Soon|Later|After a while} [B] came, took the [t] and put it [p] the [x]." if moved else
                 "{Soon|Later|After a while} [B] came, saw the [t] and left it there.", B=B, t=t, p=p2, x=x2)
        if d.flip(0.4):
            self.animal()
        self.say("[A] {came back|returned} from the <<[o]>> and looked <<[p]>> the <<[c]>> <<[x]>>.", A=A, o=other, p=p1, c=c, x=x1)
        if moved:
            self.say("The <<[t]>> was {gone|not there}! [A] {asked|called} <<[B]>>.", A=A, B=B, t=t)
            self.talk(B, "It is <<[p]>> the <<[x]>>.", p=p2, x=x2)
            self.say("[A] {found|got} the <<[t]>> {again|at last} and {smiled|laughed|danced|thanked <<[B]>>}.", A=A, B=B, t=t)
        else:
            self.say("The <<[adj]>> <<[t]>> was still {there|in its place}.", t=t, adj=adj)
        self.end(A)

    def count(self):
        """Gains and losses."""
        d, A, B = self.d, self.person(), self.person()
        t, n = d.pick(COUNT, Z), d.num(2, 9)
        self.intro(A, d.pick(t.where))
        self.say("[A.He] {had|found|picked|bought} [n].", A=A, n=t.n(n))
        for _ in range(d.num(1, 3)):
            k = d.num(0, 4) if 2 <= n <= 14 else d.pick([0, 3, 4]) if n < 2 else d.pick([1, 2, 4])
            m = 0 if k == 4 else d.num(1, 6 if k in (0, 3) else min(n - 1, 5))
            n += {0: m, 1: -m, 2: -m, 3: m, 4: 0}[k]
            self.say(["{Then|Later|After that} [A.he] {found|got|bought|picked} [m] more.", "[A.He] gave [m] to {[B]|[A.his] friend [B]}.",
                      "[m] of them {got lost|fell into the water|broke|disappeared}.", "[B] {came by|came along|was there} and gave [A.him] [m].",
                      "[A.He] {counted them|looked at them}: <<[n]>>."][k], A=A, B=B, m=NUM[m], n=NUM[n])
        self.say("{Now|In the end} [A] had <<[n]>> <<[t]>>.", A=A, n=NUM[n], t=t.s if n == 1 else t.pl)
        self.end(A, n > 1)

    def chain(self):
        """A thing passes through several hands."""
        d = self.d
        P = [self.person() for _ in range(3)]
        t = d.pick(OBJ, Z)
        adj = self.desc(t)
        self.intro(P[0], d.pick(t.where))
        self.say("[A], [B] and [C] {met there|were friends|played together}. [A] had [a] [t].", A=P[0], B=P[1], C=P[2], a=an(adj), t=t)
        h = 0
        for _ in range(d.num(1, 3)):
            g, k = d.pick([i for i in range(3) if i != h]), d.num(0, 2)
            if k == 1:
                self.talk(P[g], "{May I have|Can I see|Do you still need} the <<[t]>>?", t=t)
                self.say("<<[A]>> {nodded|smiled|agreed} and {handed|passed} it to <<[B]>>.", A=P[h], B=P[g])
            else:
                self.say("[B] {took|grabbed} the <<[t]>> from <<[A]>>{ and ran away| and laughed|}." if k else
                         "{Then|Later|Soon} <<[A]>> gave the <<[t]>> to [B].", A=P[h], B=P[g], t=t)
            h = g
            if d.flip(0.25):
                self.animal()
        self.say('{A mother|The teacher|An old man} asked, "Who has the <<[adj]>> <<[t]>>?"' if d.flip(0.5) else
                 "Who had the <<[adj]>> <<[t]>> {now|in the end}?", t=t, adj=adj)
        self.say("<<[A]>> had {it|the <<[t]>>}.", A=P[h], t=t)
        self.end(P[h])

    def quest(self):
        """A bag with things, a problem, and the thing that helps."""
        d, A = self.d, self.person()
        prob, tool, act = d.pick(table(PROBLEMS))
        items, have = d.sample([t for t in SMALL if t.s != tool], 2, Z), d.flip(0.75)
        if have:
            items.insert(d.num(0, 2), THING[tool])
        self.intro(A)
        words = [an(t.s) for t in items]
        self.say("[A.He] packed [l] into {a bag|a basket|a backpack}.", A=A, l=", ".join(words[:-1]) + " and " + words[-1])
        p = self.place()
        self.say("On the way to the [p], [A.he] {met|saw|passed} {a|an old|a friendly} [j].", A=A, p=p, j=d.pick([r[0] for r in table(JOBS)]))
        if d.flip(0.5):
            self.animal()
        self.say("{Suddenly|Then|Near the <<[p]>>} [A.he] saw that [prob].", A=A, p=p, prob=prob)
        if have:
            self.say("[A] {remembered|took out|quickly got} the <<[t]>>. [A.He] <<[act]>>.", A=A, t=tool, act=act)
        else:
            B = self.person()
            self.say("[A] {had no|needed a|wished for a} <<[t]>>. {Luckily|But} [B] had one. They <<[act]>>.", A=A, B=B, t=tool, act=act)
            self.talk(A, "Thank you, <<[B]>>!", B=B)
        self.say("Everyone [p] {cheered|clapped|was glad}.", p="<<" + PLACE[p][0] + ">>")
        self.end(A)

    def job(self):
        """A day at work: tool, material, product, customers and coins."""
        d, A = self.d, self.person()
        job, place, tool, mat, verb, prods = d.pick(table(JOBS))
        self.say("[A] {was|worked as} [j]{ in a small town| in a big city| by the sea|}.", A=A, j=an(job))
        self.say("{Every morning|Each day|At six} [A.he] went to the <<[p]>> and {took|used} the <<[tool]>> and some <<[m]>>.", A=A, p=place,
                 tool=tool, m=mat)
        t, n = THING[d.pick(prods.split())], d.num(3, 12)
        self.say("{By noon|Before lunch|Soon} [A.he] had <<[v]>> [n].", A=A, v=verb, n=t.n(n))
        price = d.num(1, 4)
        for _ in range(d.num(1, 2)):
            if n < 2:
                break
            B, m = self.person(), d.num(1, min(4, n - 1))
            n -= m
            self.say("[B] came {in|to the door} and bought [n].", B=B, n=t.n(m))
            if d.flip(0.7):
                if m == 1:
                    self.say("[B.He] paid [k] for it.", B=B, k=THING["coin"].n(price))
                else:
                    self.say("[B.He] paid [k] for each, <<[c]>> in all.", B=B, c=NUM[m * price], k=THING["coin"].n(price))
            else:
                self.talk(B, "{What|Such} [x] [t]!", x=d.pick(t.adj), t=t.pl)
        self.say("{At night|In the evening}, <<[n]>> " + ("was" if n == 1 else "were") + " {left|still there}.", n=NUM[n])
        if d.flip(0.5):
            self.say("The <<[j]>> put the <<[tool]>> away.", j=job, tool=tool)
        self.end(A)

    def pet(self):
        """An animal with its sound, its food and its bed."""
        d, A = self.d, self.person()
        a, snd, food, bed, adjs = d.pick(ANI, Z)
        name, adj = d.pick(PETS, Z), d.pick(adjs)
        self.intro(A, self.place())
        self.say("{There [A.he] met|Here [A.he] found|[A.He] had} [adj] [a] {named|called} [n].", A=A, adj=an(adj), a=a, n=name)
        k = d.num(0, 2)
        if k == 0:
            self.say("The <<[a]>> was hungry and <<[s]>>. [A] gave it <<[f]>>.", a=a, s=snd, A=A, f=food)
        elif k == 1:
            self.say("<<[n]>> <<[s]>> {loudly|softly|all day}, because it {missed its mother|was afraid of the dark|wanted to play}.", n=name, s=snd)
            self.say("[A] {brought|found} <<[f]>> and the <<[a]>> ate.", A=A, f=food, a=a)
        else:
            b = d.pick([x for x in ANI if x[0] is not a], Z)
            self.say("A [b] came and <<[s]>>. The <<[x]>> <<[a]>> <<[t]>> back.", b=b[0], s=b[1], x=adj, a=a, t=snd)
            self.say("{[A] laughed|They became friends|The <<[b]>> ran away}. [A] gave <<[n]>> <<[f]>>{ and the <<[b]>> <<[g]>>|}.", A=A, b=b[0],
                     n=name, f=food, g=b[2])
        if d.flip(0.6):
            self.talk(A, "{Sleep well|Good night|See you soon|You are my friend}, <<[n]>>!", n=name)
        self.say("{At night|Then} the <<[adj]>> <<[a]>> {slept|lay down|rested} in its <<[b]>>.", adj=adj, a=a, b=bed)
        self.end(A)

    def weather(self):
        """Who took the right thing along?"""
        d, A, B = self.d, self.person(), self.person()
        w, obj, bad, good = d.pick(table(WEATHER))
        p, o = self.place(), THING[obj]
        self.say("It was [w] that {morning|day|afternoon}. [A] and [B] {wanted to go|were on the way} to the [p].", w=w, A=A, B=B, p=p)
        pair, took, c = obj in ("glove", "boot"), [], d.pick(COLORS, 0.4)
        for X in (A, B):
            took.append(d.flip(0.5))
            if took[-1] and sum(took) == 1:
                self.say("[X] {took|had|brought} [o].", X=X, o=f"a pair of {c} <<{o.pl}>>" if pair else f"{an(c)} <<{o.s}>>")
            elif took[-1]:
                self.say("[X] {took|had|brought} [o] too.", X=X, o="some" if pair else "one")
            else:
                self.say("[X] {left everything at home|took nothing|did not care}.", X=X)
        if d.flip(0.5):
            self.talk(A if d.flip(0.5) else B, "{Let us go|Come on|What a day|I like this}!")
        for X, k in zip((A, B), took):
            self.say("[X] <<[e]>>.", X=X, e=good if k else bad)
        if sum(took) == 1:
            X, Y = (A, B) if took[0] else (B, A)
            self.say("<<[at]>>, <<[X]>> lent the {[c] |}<<[o]>> to <<[Y]>>.", at=PLACE[p][0], X=X, Y=Y, c=c, o=o.pl if pair else o.s)
        self.end(A, took[0])

    def purse(self):
        """A character trait decides what happens."""
        d, A = self.d, self.person()
        trait, act, moral = d.pick(table(TRAITS))
        self.say("[A] was [t] [A.kid].", A=A, t=an(trait))
        self.go(A, self.place(), "{One day|On Sunday|Last week} [A.he]")
        if d.flip(0.5):
            self.animal()
        n = d.num(2, 20)
        self.say("There [A.he] found a {small|new|big|worn} [c] purse with [n] coins.", A=A, c=d.pick(COLORS, 0.4), n=NUM[n])
        if d.flip(0.5):
            self.talk(A, "{Oh|Look|Wow|My goodness}, <<[n]>> coins!", n=NUM[n])
        self.say("Because [A.he] was <<[t]>>, [A.he] <<[act]>>.", A=A, t=trait, act=act)
        if d.flip(0.7):
            self.say("{The lesson|What we learn}: <<[m]>>.", m=moral)
        self.end(A, trait not in ("greedy", "lazy", "vain", "shy"))

    def week(self):
        """Days, places and things, and a question about one of them."""
        d, A = self.d, self.person()
        i, places, got = d.num(0, 6), d.sample(list(PLACE), d.num(2, 4), Z), []
        self.say("[A] {had a busy week|liked to be outside|was never at home}.", A=A)
        for j, p in enumerate(places):
            got.append(d.pick(BY_PLACE[p]))
            day = DAYS[(i + j) % 7]
            self.say("On [day] [A.he] {went to|visited|came to} the [p] and {saw|found|got|bought} [t].", A=A, day=f"<<{day}>>" if j else day,
                     p=p, t=an(got[-1].s))
        for q in d.sample(range(len(places)), d.num(1, 2)):
            if d.flip(0.5):
                self.say("Where was [A] on [day]? <<[p]>>.", A=A, day=DAYS[(i + q) % 7], p=PLACE[places[q]][0].capitalize())
            else:
                self.say("What was there on [day]? <<[t]>>.", day=DAYS[(i + q) % 7], t=an(got[q].s).capitalize())
        self.end(A)

    def letter(self):
        d, A, B, C = self.d, self.person(), self.person(), self.person()
        p = self.place()
        t = d.pick(BY_PLACE[p])
        adj = self.desc(t)
        self.say("Dear [B], {how are you?|I hope you are well.|thank you for your letter.|I miss you.}", B=B)
        self.say("I am [p] with my [k] [C].", p=PLACE[p][0], k=d.pick([k.split(":")[not C.girl] for k in KIN]), C=C)
        if d.flip(0.5):
            self.say("{Yesterday|Today|This morning} we [do].", do=d.pick(PLACE[p][1]))
        self.say("{Then|Later} we {found|saw|bought} [a] [t].", a=an(adj), t=t)
        k = d.num(0, 2)
        if k == 0:
            self.say("<<[C]>> {liked it|laughed|wanted to keep it}, but <<[C.he]>> {was tired|had to go|lost it}.", C=C)
        elif k == 1:
            a = d.pick(ANI, Z)
            self.say("A [x] [a] came and <<[s]>>, so <<[C]>> gave it <<[f]>>.", x=d.pick(a[4]), a=a[0], s=a[1], C=C, f=a[2])
        else:
            w = d.pick(table(WEATHER))
            self.say("The weather is [w], so I always take my <<[o]>>.", w=w[0], o=THING[w[1]].pl if w[1] in ("glove", "boot") else w[1])
        self.say("{I will bring you the <<[adj]>> <<[t]>>|The <<[adj]>> <<[t]>> is for you}, <<[B]>>.", adj=adj, t=t, B=B)
        self.say("{Love|See you soon|Your friend}, [A].", A=A)

    def compare(self):
        """Two comparisons, one conclusion."""
        d = self.d
        P = [self.person() for _ in range(3)]
        a = d.pick(BIG)
        more = {"brave": "braver"}.get(a, a + "er")
        p = self.place()
        self.say("[A], [B] and [C] met [p].", A=P[0], B=P[1], C=P[2], p=PLACE[p][0])
        if d.flip(0.5):
            self.scene(p)
        o = d.sample(range(3), 3)
        facts = [(o[0], o[1]), (o[1], o[2])]
        for x, y in facts[::-1] if d.flip(0.5) else facts:
            self.say("[X] was [m] than [Y].", X=P[x], Y=P[y], m=more)
        if d.flip(0.3):
            self.animal()
        top = d.flip(0.5)
        self.say("Who was the " + more[:-1] + "st? <<[X]>>." if top else "Who was the least " + a + "? <<[X]>>.",
                 X=P[o[0] if top else o[2]])
        self.end(P[o[0]])

    def party(self):
        """Guests and gifts: who brought what?"""
        d, A = self.d, self.person()
        n = d.num(4, 11)
        self.say("It was [A]'s birthday. [A.He] was now [n] years old.", A=A, n=NUM[n])
        guests = [self.person() for _ in range(d.num(2, 3))]
        gifts = d.sample(SMALL, len(guests), Z)
        adjs = []
        for B, t in zip(guests, gifts):
            adjs.append(self.desc(t))
            self.say("[B] {brought|gave [A.him]|came with} [a] [t].", A=A, B=B, a=an(adjs[-1]), t=t)
        food = d.pick([t for t in OBJ if t.kind == "food"], Z)
        self.say("They ate [x] [f] and {sang|danced|played games|told jokes}.", x=d.pick(food.adj), f=food.pl)
        for q in d.sample(range(len(guests)), d.num(1, 2)):
            if d.flip(0.5):
                self.say("The [t] was <<[x]>>. It was from <<[B]>>.", t=gifts[q], x=adjs[q], B=guests[q])
            else:
                self.talk(A, "[B], thank you for the <<[x]>> <<[t]>>!", B=guests[q], x=adjs[q], t=gifts[q])
        self.say("Next year [A] will be <<[n]>>.", A=A, n=NUM[n + 1])

    def sums(self):
        """A bare word problem."""
        d, A = self.d, self.person()
        t, k, a = d.pick(COUNT, Z), d.num(0, 2), d.num(1, 10)
        if k == 0:
            b = d.num(1, 10)
            self.say("Question: [A] has [n]. [A.He] {finds|gets|buys} [b] more. How many <<[t]>> does [A.he] have? Answer: <<[r]>>.", A=A, n=t.n(a),
                     b=NUM[b], t=t.pl, r=NUM[a + b])
        elif k == 1:
            b = d.num(0, a)
            self.say("Question: [A] has [n]. [A.He] {loses|sells|gives away} [b]. How many <<[t]>> are left? Answer: <<[r]>>.", A=A, n=t.n(a),
                     b=NUM[b], t=t.pl, r=NUM[a - b])
        else:
            B, b = self.person(), d.num(1, 10)
            self.say("Question: [A] has [n] and [B] has [m]. Who has more? Answer: <<[r]>>.", A=A, B=B, n=t.n(a), m=NUM[b],
                     r=A.name if a > b else B.name if b > a else "nobody")


KINDS = "hide count chain quest job pet weather purse week letter compare party sums".split()
MARK = re.compile("<<|>>")


def document(seed):
    """-> text, nats, probes: (start, end) of characters that the earlier text determines."""
    d = Dice(seed)
    s = Writer(d)
    getattr(s, d.pick(KINDS))()
    raw, text, probes, pos, depth = " ".join(s.out), "", [], 0, []
    for m in MARK.finditer(raw):
        text += raw[pos:m.start()]
        pos = m.end()
        if m[0] == "<<":
            depth.append(len(text))
        else:
            probes.append((depth.pop(), len(text)))
    return text + raw[pos:], d.nats, probes


@dataclass(frozen=True)
class Story:
    text: str
    nats: float
    determined: list


def story(seed):
    return Story(*document(seed))


def stories(count, seed):
    return (story(f"{seed}-{i}") for i in range(count))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=10)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    for each in stories(a.docs, a.seed):
        text, nats, probes = each.text, each.nats, each.determined
        print(text, f"\n   [{nats:.1f} nats, {len(text.split())} words; determined: {[text[i:j] for i, j in probes]}]\n")
